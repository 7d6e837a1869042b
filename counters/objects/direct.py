"""Keys that come from a client instead of the journal.

They have no position, so nothing fences them and nothing replays them: whoever sends them repeats what was
not confirmed. That is harmless, since adding a key twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from counters.config import Layout, ObjectsSettings, OnVanished
from counters.errors import StoreError
from counters.objects.derived import Derived
from counters.objects.sketch import hash_keys, locate
from counters.objects.spec import BASE_PRECISION, CounterSpec
from counters.objects.store import Addition, CounterStore, Flush, Stale, Vanished

CHUNK = 20_000
"""Keys per write: a script blocks everybody else, about 10 ms for this many."""


TRIES = 5
"""Attempts while other workers repair or rebuild the counter at the same time."""


class DirectWriter:
    """Adds keys to counters; safe to share between threads.

    Args:
        store: of the consumer group that reads the journal. Where a counter lost keys, that group has to read
            its topics again.
        settings: for counters that do not exist yet.
        topic_prefix: topics are named ``<topic_prefix>.<object type>``.
    """

    def __init__(self, store: CounterStore, settings: ObjectsSettings, topic_prefix: str) -> None:
        self._store = store
        self._settings = settings
        self._topic_prefix = topic_prefix
        self._sources = Derived.from_config(settings.derived).sources

    def add(self, counter: str, keys: Sequence[bytes]) -> None:
        """Add ``keys``; registers the counter if it is new, unless there are none.

        Raises:
            Unavailable: Redis is down, full or read-only; some of the keys may have been added.
            StoreError: the counter's key holds something else.
        """
        for start in range(0, len(keys), CHUNK):
            self._add(counter, keys[start : start + CHUNK])

    def _add(self, counter: str, keys: Sequence[bytes]) -> None:
        topics = self._topics_of(counter)
        for _ in range(TRIES):
            # Asked every time: the counter may have been repaired or rebuilt by a worker.
            spec = self._store.register(self._new(counter), topics)
            flush = Flush(next_offsets={}, messages={}, additions=[Addition(spec, _by_stratum(spec, keys))])
            try:
                broken = self._store.flush(flush)
            except Vanished:
                reread = self._settings.on_vanished is OnVanished.REREAD
                self._store.repair(spec, topics if reread else [])
            except Stale:
                continue
            else:
                break
        else:
            raise StoreError(f"counter {counter} vanished {TRIES} times in a row; see redis maxmemory-policy")
        if broken:
            raise StoreError(f"the key of counter {counter} holds something else; delete it from Redis")

    def _new(self, counter: str) -> CounterSpec:
        if self._settings.layout is Layout.NATIVE:
            return CounterSpec(counter, self._settings.precision)
        spec = CounterSpec(counter, BASE_PRECISION, layout=Layout.LEGACY)
        return msgspec.structs.replace(spec, adopted=self._store.is_filled(spec))

    def _topics_of(self, counter: str) -> list[str]:
        types = sorted({counter, *self._sources.get(counter, ())})
        return [f"{self._topic_prefix}.{object_type}" for object_type in types]


def _by_stratum(spec: CounterSpec, keys: Sequence[bytes]) -> list[tuple[int, list[bytes]]]:
    """Pairs of stratum number and its keys."""
    if spec.strata == 1:
        return [(0, list(keys))]
    registers, _ = locate(hash_keys(keys), spec.precision)
    groups: dict[int, list[bytes]] = {}
    for key, stratum in zip(keys, (registers >> BASE_PRECISION).tolist(), strict=True):
        groups.setdefault(stratum, []).append(key)
    return list(groups.items())
