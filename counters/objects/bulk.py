"""Adds many keys to counters for a task that keeps its own position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from counters.checkpoints.model import Advance
from counters.config import ObjectsSettings, OnVanished
from counters.errors import StoreError
from counters.objects.extraction import Extraction
from counters.objects.rises import Mirrors
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore, Flush, Stale, Vanished

TRIES = 5
"""Attempts while workers repair or rebuild a counter at the same time."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records that no position covers.

    Attributes:
        messages: how many they are, per topic.
        receipts: one name for each.
    """

    messages: Mapping[str, int] = field(default_factory=dict)
    receipts: Sequence[str] = ()


NO_RECORDS = Records()


class BulkWriter:
    """Counts beside the live workers, as fast as they do. Not safe to share between threads.

    Args:
        store: of the consumer group that reads the journal. Where a counter lost keys, that group has to read
            its topics again.
        settings: for counters that do not exist yet.
    """

    def __init__(self, store: CounterStore, settings: ObjectsSettings, extraction: Extraction) -> None:
        self._store = store
        self._settings = settings
        self._extraction = extraction
        self._mirrors = Mirrors(store)
        self._specs: dict[str, CounterSpec] = {}

    def add(
        self, keys: Mapping[str, Sequence[bytes]], advance: Advance | None, once: Records = NO_RECORDS
    ) -> None:
        """Add the keys of each counter, and record the progress: all of it, or nothing.

        Args:
            advance: of the task; None: its progress is not in this store.
            once: records to count as messages of their topics, each once for all times.

        Raises:
            ClaimLost, CursorMoved: nothing was written.
            Receipted: one of the records was counted before; nothing was written.
            Unavailable: Redis is down, full or read-only; nothing was written, or all of it was.
            StoreError: the key of a counter holds something else.
        """
        for _ in range(TRIES):
            rises = [
                rise for name, some in keys.items() for rise in self._mirrors.rises(self._spec(name), some)
            ]
            flush = Flush(
                next_offsets={},
                messages=once.messages,
                additions=[rise.addition for rise in rises],
                advance=advance,
                receipts=once.receipts,
            )
            try:
                broken = self._store.flush(flush)
            except Vanished as vanished:
                for name in vanished.counters:
                    reread = self._settings.on_vanished is OnVanished.REREAD
                    self._store.repair(self._spec(name), self._extraction.topics_of(name) if reread else [])
                self.forget()
                continue
            except Stale:
                self.forget()
                continue
            if broken:
                raise StoreError(
                    f"a key of counter {broken[0].name} holds something else; delete it from Redis"
                )
            for rise in rises:
                rise.apply()
            return
        raise StoreError(f"counters vanished {TRIES} times in a row; see redis maxmemory-policy")

    def forget(self) -> None:
        """What is known of Redis may not hold any more."""
        self._mirrors.forget()
        self._specs.clear()

    def _spec(self, name: str) -> CounterSpec:
        if name not in self._specs:
            new = self._store.new_spec(name, self._settings)
            self._specs[name] = self._store.register(new, self._extraction.topics_of(name))
        return self._specs[name]
