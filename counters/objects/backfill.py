"""Counting what the live workers did not read: the past of a topic, or a dump of keys."""

from __future__ import annotations

import logging
from typing import Any, TypeGuard

from counters.checkpoints.runner import Done, Turn
from counters.errors import InputError
from counters.objects.bulk import BulkWriter, Changed
from counters.objects.dumps import Dump
from counters.objects.ranges import Journal, Range, progress_of
from journal_client.scan import UnknownTopicError

logger = logging.getLogger(__name__)

BATCH = 200_000
"""Keys per batch."""

_MOST = 1 << 63
"""More than any place in a file."""


class DumpBackfill:
    """Counts the keys of a dump. The cursor is written with the keys.

    Nobody else reads the dump: if the counter lost keys meanwhile, or is another one since a rebuild, all of
    it is counted anew.
    """

    unit = "keys"

    def __init__(self, name: str, counter: str, dump: Dump, writer: BulkWriter) -> None:
        self.name = name
        self._counter = counter
        self._dump = dump
        self._writer = writer

    def batch(self, turn: Turn) -> Done:
        """The next keys.

        Raises:
            InputError: the dump is not the one that the cursor is about, or the cursor is none.
        """
        known = turn.cursor.get("dump")
        if turn.cursor and not (isinstance(known, dict) and self._dump.continues(known)):
            raise InputError(
                f"the dump is not the one {self.name} has read so far: give it another --name, or begin anew "
                f"with counters checkpoints rewind {self.name}"
            )
        at, begun = turn.cursor.get("at", {}), turn.cursor.get("epoch")
        if not self._is_place(at) or not (begun is None or type(begun) is int):
            raise InputError(
                f"the cursor of {self.name} is none of this task; counters checkpoints rewind {self.name}"
            )
        chunk = self._dump.read(at, BATCH)
        for problem in chunk.problems:
            logger.warning("not counted: %s", problem)
        epoch = self._writer.epoch(self._counter) if begun is None and chunk.keys else begun
        cursor = None if chunk.cursor is None else self._cursor(chunk.cursor, epoch)
        done = Done(cursor, ok=len(chunk.keys), failed=chunk.failed, recorded=True)
        if begun is None:  # none of its keys is in the counter yet
            self._writer.add({self._counter: chunk.keys} if chunk.keys else {}, turn.advance(done))
            return done
        try:
            self._writer.add_to(self._counter, begun, chunk.keys, turn.advance(done))
        except Changed:
            logger.warning("counter %s was emptied or rebuilt meanwhile; counting all anew", self._counter)
            return Done({})
        return done

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """How far in the dump, in its own unit."""
        at = cursor.get("at")
        return self._dump.done(at if self._is_place(at) else {}), self._dump.total

    def _is_place(self, at: Any) -> TypeGuard[dict[str, int]]:
        """Whether that is a place within the dump: people can set cursors, too."""
        if not isinstance(at, dict) or not all(type(n) is int and 0 <= n < _MOST for n in at.values()):
            return False
        return self._dump.total is None or self._dump.done(at) <= self._dump.total

    def _cursor(self, at: dict[str, int], epoch: int | None) -> dict[str, Any]:
        share = {} if self._dump.total is None else {"done": self._dump.done(at), "total": self._dump.total}
        return share | {"at": at, "epoch": epoch, "dump": self._dump.fingerprint}


class TopicBackfill:
    """Counts a topic from its beginning to where it ended at the start. The cursor is written with the
    keys."""

    unit = "records"

    def __init__(self, object_type: str, journal: Journal, writer: BulkWriter) -> None:
        self.name = f"backfill:{object_type}"
        self._object_type = object_type
        self._journal = journal
        self._writer = writer

    def batch(self, turn: Turn) -> Done:
        """The next records."""
        topic = self._journal.extraction.topic_of(self._object_type)
        range_ = Range.of_cursor(turn.cursor, self.name, [topic]) if turn.cursor else self._whole()
        portion = self._journal.read(range_, BATCH)
        cursor = None if portion.rest is None else portion.rest.cursor()
        done = Done(cursor, ok=len(portion.batch), failed=portion.failed, recorded=True)
        self._writer.add(self._journal.extraction.keys(portion.batch), turn.advance(done))
        return done

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """Offsets done, and of how many."""
        return progress_of(cursor)

    def _whole(self) -> Range:
        try:
            return Range.between(self._journal.watermarks(self._object_type))
        except UnknownTopicError:
            if sources := self._journal.extraction.sources_of(self._object_type):
                raise InputError(
                    f"{self._object_type} is found inside messages of {', '.join(sources)}; backfill those"
                ) from None
            raise
