"""Keys that come from a client instead of the journal.

They have no position, so nothing fences them and nothing replays them: whoever sends them repeats what was
not confirmed. That is harmless, since adding a key twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from counters.config import ObjectsSettings, OnVanished
from counters.errors import StoreError
from counters.objects.derived import Derived
from counters.objects.extraction import Extraction
from counters.objects.sketch import Hashes, hash_keys, locate
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
        self._extraction = Extraction(Derived.from_config(settings.derived), topic_prefix)

    def add(self, counter: str, keys: Sequence[bytes]) -> None:
        """Add ``keys``; registers the counter if it is new, unless there are none.

        Raises:
            Unavailable: Redis is down, full or read-only; some of the keys may have been added.
            StoreError: the counter's key holds something else.
        """
        for start in range(0, len(keys), CHUNK):
            self._add(counter, keys[start : start + CHUNK])

    def _add(self, counter: str, keys: Sequence[bytes]) -> None:
        topics, hashes = self._extraction.topics_of(counter), hash_keys(keys)
        for _ in range(TRIES):
            # Asked every time: the counter may have been repaired or rebuilt by a worker.
            spec = self._store.register(self._store.new_spec(counter, self._settings), topics)
            additions = [Addition(g, _by_stratum(g, keys, hashes)) for g in spec.generations]
            try:
                broken = self._store.flush(Flush(next_offsets={}, messages={}, additions=additions))
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


def _by_stratum(spec: CounterSpec, keys: Sequence[bytes], hashes: Hashes) -> list[tuple[int, list[bytes]]]:
    """Pairs of stratum number and its keys."""
    if spec.strata == 1:
        return [(0, list(keys))]
    registers, _ = locate(hashes, spec.precision)
    groups: dict[int, list[bytes]] = {}
    for key, stratum in zip(keys, (registers >> BASE_PRECISION).tolist(), strict=True):
        groups.setdefault(stratum, []).append(key)
    return list(groups.items())
