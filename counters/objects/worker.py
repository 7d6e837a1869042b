"""The view that counts: batches of keys become a few PFADDs and a position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from counters.config import ObjectsSettings, OnVanished
from counters.objects import definitions
from counters.objects.definitions import Definition
from counters.objects.derived import Derived
from counters.objects.extraction import Extraction
from counters.objects.metrics import WorkerMetrics
from counters.objects.rises import Mirrors
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore, Flush, Redefined, Stale, Vanished
from journal_client.batch import Batch, Partition
from journal_client.errors import StalePosition, Unavailable
from journal_client.handler import Effect

logger = logging.getLogger(__name__)

_NOTHING = Definition(0, {})


class CountingHandler:
    """Counts the distinct keys of each topic, and distinct values inside messages, in Redis.

    It sends only keys that can raise a register, to every generation of their counter. What it knows of the
    registers is thrown away whenever Redis turns out to be in another state than this worker left it in.
    """

    effect = Effect.POSITIONAL
    """Keys may be added twice, the number of messages may not."""

    def __init__(
        self, store: CounterStore, settings: ObjectsSettings, topic_prefix: str, metrics: WorkerMetrics
    ) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._extraction = Extraction(Derived.from_config(settings.derived), topic_prefix)
        self._definitions: dict[str, bytes] = {}
        self._specs: dict[str, CounterSpec] = {}
        self._mirrors = Mirrors(store)

    # -- the contract ------------------------------------------------------------------------------

    def decoder(self, topic: str) -> Callable[[bytes], object] | None:
        """Values are decoded only where a derived counter looks into them."""
        return self._extraction.decoder(topic)

    def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int | None]:
        """Where the view stands. What takes positions back comes first: other values to look for in a topic,
        and counters that vanished."""
        topics = {partition.topic for partition in partitions}
        self._agree(topics)
        self._repair_vanished(topics)
        stored, moved = self._store.positions(partitions)
        if moved:
            self._forget("the positions in Redis are not those last written")
        return stored

    def holds_data(self, topic: str) -> bool:
        """An adopted Redis has counts and no positions."""
        return self._spec(self._extraction.object_type(topic)).adopted

    def handle(self, batch: Batch) -> None:
        """One atomic write: keys that raise a register, positions, records counted, stamps."""
        rises = []
        for counter, keys in self._extraction.keys(batch).items():
            self._metrics.keys_read.labels(counter).inc(len(keys))
            rises += self._mirrors.rises(self._spec(counter), keys)
        flush = Flush(
            next_offsets=batch.next_offsets,
            messages=batch.counts(),
            additions=[rise.addition for rise in rises],
            definitions={
                partition.topic: self._definitions[partition.topic] for partition in batch.next_offsets
            },
        )
        try:
            broken = self._store.flush(flush)
        except Stale:
            raise self._stale(batch, "stale") from None
        except Redefined:
            self._agree({partition.topic for partition in batch.next_offsets})
            raise self._stale(batch, "redefined") from None
        except Vanished as vanished:
            self._repair(vanished.counters)
            raise self._stale(batch, "vanished") from None
        for rise in rises:
            self._metrics.sent(rise.spec.name, len(rise.registers), rise.strata)
            rise.apply()
        for spec in broken:
            logger.error(
                "a key of counter %s, generation %d, holds something else; delete it to have it counted anew",
                spec.name,
                spec.generation,
            )
            self._metrics.broken_keys.labels(spec.name).inc()
            self._mirrors.drop(spec)

    def _spec(self, counter: str) -> CounterSpec:
        if counter not in self._specs:
            new = self._store.new_spec(counter, self._settings)
            self._specs[counter] = self._store.register(new, self._extraction.topics_of(counter))
        return self._specs[counter]

    # -- what to look for ---------------------------------------------------------------------------

    def _agree(self, topics: Collection[str]) -> None:
        """Come to terms with the other workers about what is looked for in each topic.

        Raises:
            Unavailable: one that started later looks for something else.
        """
        for topic, entry in self._store.definitions(sorted(topics)).items():
            stored, mine = definitions.decode(entry), definitions.decode(self._definitions.get(topic))
            wanted = definitions.of_type(self._settings.derived, self._extraction.object_type(topic))
            if entry is not None and stored is not None and stored.counters == wanted:
                self._definitions[topic] = entry
            elif mine is not None and stored is not None and stored.number > mine.number:
                raise Unavailable(
                    f"a worker that started later looks for {stored.counters} in {topic}, this one for "
                    f"{wanted}; give all workers of the group the same objects.derived and restart this one",
                    retry_after=5.0,
                )
            else:
                number = max(d.number for d in (stored, mine, _NOTHING) if d is not None)
                self._redefine(topic, entry, stored, Definition(number + 1, wanted))

    def _redefine(
        self, topic: str, entry: bytes | None, stored: Definition | None, wanted: Definition
    ) -> None:
        after = definitions.encode(wanted)
        changed = definitions.redefined(stored.counters, wanted.counters) if stored is not None else []
        forget = {source for counter in changed for source in self._extraction.topics_of(counter)}
        if stored is not None:
            forget.add(topic)
            again = ", ".join(sorted(forget))
            logger.warning("objects.derived changed for %s: reading %s again", topic, again)
        specs = [self._spec(counter) for counter in changed]
        if self._store.define(topic, entry, after, anew=specs, forget=sorted(forget)):
            self._definitions[topic] = after
            self._forget("objects.derived changed")
        else:
            self._forget("another worker was faster")
            self._agree([topic])

    # -- when Redis is not as we left it -----------------------------------------------------------

    def _stale(self, batch: Batch, reason: str) -> StalePosition:
        self._forget(reason)
        stored, _ = self._store.positions(batch.next_offsets)
        return StalePosition(stored, reason)

    def _forget(self, why: str) -> None:
        """Registers may be lower now than they were, and the registry may be gone or tell of other
        generations."""
        if self._mirrors.forget():
            logger.warning("mirrors dropped: %s", why)
        self._specs.clear()

    def _repair_vanished(self, topics: Collection[str]) -> None:
        for topic in topics:
            for counter in self._extraction.counters_of(topic):
                self._spec(counter)  # also those that no batch has fed yet
        missing = self._store.missing(list(self._specs.values())) if self._specs else []
        if missing:
            self._repair([spec.name for spec in missing])

    def _repair(self, counters: Collection[str]) -> None:
        for counter in counters:
            spec = self._spec(counter)
            reread = self._settings.on_vanished is OnVanished.REREAD
            topics = self._extraction.topics_of(counter) if reread else []
            if self._store.repair(spec, topics):
                self._metrics.vanished.labels(counter).inc()
                logger.error(
                    "counter %s lacks keys in Redis (new, deleted or evicted); %s",
                    counter,
                    f"reading {', '.join(topics)} again" if topics else "counting on from nothing",
                )
        self._forget("counters vanished")
