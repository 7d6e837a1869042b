"""Adds many keys to counters for a task that keeps its own position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from counters.checkpoints.model import Advance, encode_cursor
from counters.config import ObjectsSettings, OnVanished
from counters.errors import StoreError
from counters.objects.extraction import Extraction
from counters.objects.rises import Mirrors, Rise
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore, Flush, Stale, Vanished

TRIES = 5
"""Attempts while workers repair or rebuild a counter at the same time."""


class Changed(Exception):
    """A counter was repaired, rebuilt or emptied since the writer learnt of it; nothing was written."""


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

_ANY: Mapping[str, int] = {}


class Footing:
    """Whether a task goes on where its last write ended.

    If not, Redis may be older than what is known of it: restored while the task was paused, say. A key that
    was known to be in it would never be sent again.
    """

    def __init__(self) -> None:
        self._stands: str | None = None

    def leave(self, advance: Advance) -> bool:
        """Before a write: whether the last one ended where this one begins."""
        kept = advance.expected is None or advance.expected == self._stands
        self._stands = None
        return kept

    def reach(self, advance: Advance) -> None:
        """After a write that was made."""
        assert advance.cursor is None or isinstance(advance.cursor, Mapping)
        self._stands = encode_cursor(advance.cursor)


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
        self._footing = Footing()

    def epoch(self, counter: str) -> int:
        """Of the counter as this writer knows it; it is registered if it is new."""
        return self._spec(counter).epoch

    def add(
        self, keys: Mapping[str, Sequence[bytes]], advance: Advance | None, once: Records = NO_RECORDS
    ) -> None:
        """Add the keys of each counter, and record the progress: all of it, or nothing.

        A counter that changed meanwhile is taken as it is then.

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
            try:
                self._add(keys, advance, once)
            except Changed:
                continue
            return
        raise StoreError(f"counters vanished {TRIES} times in a row; see redis maxmemory-policy")

    def add_to(self, counter: str, epoch: int, keys: Sequence[bytes], advance: Advance) -> None:
        """Like :meth:`add`, unless the counter is not in this epoch any more.

        Raises:
            Changed: nothing was written, and what was added before may be gone.
        """
        self._add({counter: keys} if keys else {}, advance, NO_RECORDS, {counter: epoch})

    def _add(
        self,
        keys: Mapping[str, Sequence[bytes]],
        advance: Advance | None,
        once: Records,
        epochs: Mapping[str, int] = _ANY,
    ) -> None:
        if advance is not None and not self._footing.leave(advance):
            self._forget()
        try:
            if any(self._spec(counter).epoch != epoch for counter, epoch in epochs.items()):
                raise Changed
            self._flush(keys, advance, once)
        except BaseException:
            self._forget()
            raise
        if advance is not None:
            self._footing.reach(advance)

    def _flush(self, keys: Mapping[str, Sequence[bytes]], advance: Advance | None, once: Records) -> None:
        rises: list[Rise] = []
        for name, some in keys.items():
            rises += self._mirrors.rises(self._spec(name), some)
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
            raise Changed from None
        except Stale:
            raise Changed from None
        if broken:
            anew = "" if advance is None else f", then counters checkpoints rewind {advance.name}"
            raise StoreError(
                f"a key of counter {broken[0].name} holds something else; delete it from Redis{anew}"
            )
        for rise in rises:
            rise.apply()

    def _forget(self) -> None:
        """What is known of Redis may not hold any more."""
        self._mirrors.forget()
        self._specs.clear()

    def _spec(self, name: str) -> CounterSpec:
        if name not in self._specs:
            new = self._store.new_spec(name, self._settings)
            self._specs[name] = self._store.register(new, self._extraction.topics_of(name))
        return self._specs[name]
