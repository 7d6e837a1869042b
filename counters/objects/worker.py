"""The view that counts: batches of keys become a few PFADDs and a position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np

from counters.config import Layout, ObjectsSettings, OnVanished
from counters.errors import SketchError
from counters.objects import definitions
from counters.objects.definitions import Definition
from counters.objects.derived import Derived
from counters.objects.metrics import WorkerMetrics
from counters.objects.sketch import Indices, Mirror, Registers, hash_keys, locate, sketch_of
from counters.objects.spec import BASE_PRECISION, CounterSpec
from counters.objects.store import Addition, CounterStore, Flush, Redefined, Stale, Vanished
from journal_client.batch import Batch, Partition
from journal_client.errors import StalePosition, Unavailable
from journal_client.handler import Effect

logger = logging.getLogger(__name__)


MERGE_FROM = 128
"""Keys for one stratum from which a HyperLogLog of them is sent instead. Redis takes about 1.3 µs for a key
in a script and 100 µs to merge 16,384 registers; a small counter has thousands of keys to send per batch."""


_NOTHING = Definition(0, {})


@dataclass(frozen=True, slots=True)
class _Rise:
    """What a batch does to one counter: which registers rise how far, and the keys that do it."""

    spec: CounterSpec
    mirror: Mirror
    registers: Indices
    ranks: Registers
    strata: list[tuple[int, list[bytes] | bytes]] = field(default_factory=list)


class CountingHandler:
    """Counts the distinct keys of each topic, and distinct values inside messages, in Redis.

    Per counter it mirrors a lower bound of Redis's registers, and sends only keys that can raise one: at a
    billion distinct keys almost none. The mirror is a filter only; it is raised after Redis took the keys,
    and thrown away whenever Redis turns out to be in another state than this worker left it in.
    """

    effect = Effect.POSITIONAL
    """Keys may be added twice, the number of messages may not."""

    def __init__(
        self, store: CounterStore, settings: ObjectsSettings, topic_prefix: str, metrics: WorkerMetrics
    ) -> None:
        self._store = store
        self._settings = settings
        self._topic_prefix = f"{topic_prefix}."
        self._metrics = metrics
        self._derived = Derived.from_config(settings.derived)
        self._definitions: dict[str, bytes] = {}
        self._specs: dict[str, CounterSpec] = {}
        self._mirrors: dict[str, Mirror] = {}

    # -- the contract ------------------------------------------------------------------------------

    def decoder(self, topic: str) -> Callable[[bytes], object] | None:
        """Values are decoded only where a derived counter looks into them."""
        return self._derived.decoder(self._object_type(topic))

    def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int | None]:
        """Where the view stands. What takes positions back comes first: other values to look for in a topic,
        and counters that vanished."""
        topics = {partition.topic for partition in partitions}
        self._agree(topics)
        self._repair_vanished(topics)
        stored, moved = self._store.positions(partitions)
        if moved:
            self._forget_mirrors("the positions in Redis are not those last written")
        return stored

    def holds_data(self, topic: str) -> bool:
        """An adopted Redis has counts and no positions."""
        return self._spec(self._object_type(topic)).adopted

    def handle(self, batch: Batch) -> None:
        """One atomic write: keys that raise a register, positions, records counted, stamps."""
        rises = [self._rise(counter, keys) for counter, keys in self._by_counter(batch).items()]
        flush = Flush(
            next_offsets=batch.next_offsets,
            messages=batch.counts(),
            additions=[Addition(rise.spec, rise.strata) for rise in rises],
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
        for name in broken:
            logger.error(
                "the key of counter %s holds something else; delete it to have it counted again", name
            )
            self._metrics.broken_keys.labels(name).inc()
            self._mirrors.pop(name, None)
        for rise in rises:
            self._metrics.sent(rise.spec.name, len(rise.registers), rise.strata)
            if rise.spec.name not in broken:
                rise.mirror.raise_to(rise.registers, rise.ranks)

    # -- counting ----------------------------------------------------------------------------------

    def _by_counter(self, batch: Batch) -> dict[str, list[bytes]]:
        """The keys of each counter: a topic's own, and the values found inside its messages."""
        keys = {self._object_type(topic): some for topic, some in batch.keys.items() if some}
        found: dict[str, set[bytes]] = {}
        for topic, values in batch.values.items():
            counters = self._derived.feeds(self._object_type(topic))
            if not counters:
                continue
            decoded = [value for value in values if value is not None]
            for number, counter in enumerate(counters):
                some: list[tuple[bytes, ...]] = [value[number] for value in decoded]  # type: ignore[index]
                found.setdefault(counter, set()).update(*some)
        for counter, distinct in found.items():
            keys[counter] = [*keys.get(counter, ()), *distinct]
        return keys

    def _rise(self, counter: str, keys: list[bytes]) -> _Rise:
        self._metrics.keys_read.labels(counter).inc(len(keys))
        spec = self._spec(counter)
        mirror = self._mirror(spec)
        registers, ranks = locate(hash_keys(keys), spec.precision)
        chosen = mirror.raising(registers, ranks)
        registers, ranks = registers[chosen], ranks[chosen]
        if not len(chosen):
            return _Rise(spec, mirror, registers, ranks)
        strata = registers >> BASE_PRECISION
        cuts = [0, *(np.flatnonzero(np.diff(strata)) + 1).tolist(), len(chosen)]
        groups: list[tuple[int, list[bytes] | bytes]] = []
        for a, b in pairwise(cuts):
            if b - a < MERGE_FROM:
                groups.append((int(strata[a]), [keys[i] for i in chosen[a:b].tolist()]))
            else:
                groups.append((int(strata[a]), sketch_of(registers[a:b], ranks[a:b])))
        return _Rise(spec, mirror, registers, ranks, groups)

    def _object_type(self, topic: str) -> str:
        return topic.removeprefix(self._topic_prefix)

    def _spec(self, counter: str) -> CounterSpec:
        if counter not in self._specs:
            legacy = self._settings.layout is Layout.LEGACY
            spec = CounterSpec(
                counter, BASE_PRECISION if legacy else self._settings.precision, layout=self._settings.layout
            )
            if legacy:
                spec = msgspec.structs.replace(spec, adopted=self._store.is_filled(spec))
            self._specs[counter] = self._store.register(spec, self._topics_of(counter))
        return self._specs[counter]

    def _mirror(self, spec: CounterSpec) -> Mirror:
        mirror = self._mirrors.get(spec.name)
        if mirror is None:
            mirror = Mirror(spec.precision)
            try:
                for stratum, registers in enumerate(self._store.registers(spec)):
                    if registers is not None:
                        mirror.load(stratum, registers)
            except SketchError as error:
                logger.error("counter %s: %s", spec.name, error)
            self._mirrors[spec.name] = mirror
        return mirror

    # -- what to look for ---------------------------------------------------------------------------

    def _agree(self, topics: Collection[str]) -> None:
        """Come to terms with the other workers about what is looked for in each topic.

        Raises:
            Unavailable: one that started later looks for something else.
        """
        for topic, entry in self._store.definitions(sorted(topics)).items():
            stored, mine = definitions.decode(entry), definitions.decode(self._definitions.get(topic))
            wanted = definitions.of_type(self._settings.derived, self._object_type(topic))
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
        forget = {source for counter in changed for source in self._topics_of(counter)}
        if stored is not None:
            forget.add(topic)
            again = ", ".join(sorted(forget))
            logger.warning("objects.derived changed for %s: reading %s again", topic, again)
        specs = [self._spec(counter) for counter in changed]
        if self._store.define(topic, entry, after, anew=specs, forget=sorted(forget)):
            self._definitions[topic] = after
            self._forget_mirrors("objects.derived changed")
        else:
            self._agree([topic])  # another worker was faster

    # -- when Redis is not as we left it -----------------------------------------------------------

    def _stale(self, batch: Batch, reason: str) -> StalePosition:
        self._forget_mirrors(reason)
        stored, _ = self._store.positions(batch.next_offsets)
        return StalePosition(stored, reason)

    def _forget_mirrors(self, why: str) -> None:
        """Registers may be lower now than they were, and the registry may be gone."""
        if self._mirrors:
            logger.warning("mirrors dropped: %s", why)
        self._mirrors.clear()
        self._specs.clear()

    def _repair_vanished(self, topics: Collection[str]) -> None:
        for object_type in map(self._object_type, topics):
            for counter in (object_type, *self._derived.feeds(object_type)):
                self._spec(counter)  # also those that no batch has fed yet
        missing = self._store.missing(list(self._specs.values())) if self._specs else []
        if missing:
            self._repair([spec.name for spec in missing])

    def _repair(self, counters: Collection[str]) -> None:
        for counter in counters:
            spec = self._spec(counter)
            topics = self._topics_of(counter) if self._settings.on_vanished is OnVanished.REREAD else []
            if self._store.repair(spec, topics):
                self._metrics.vanished.labels(counter).inc()
                logger.error(
                    "counter %s lacks keys in Redis (new, deleted or evicted); %s",
                    counter,
                    f"reading {', '.join(topics)} again" if topics else "counting on from nothing",
                )
        self._forget_mirrors("counters vanished")

    def _topics_of(self, counter: str) -> list[str]:
        types = {counter, *self._derived.sources.get(counter, ())}
        return [f"{self._topic_prefix}{object_type}" for object_type in sorted(types)]
