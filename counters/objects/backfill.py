"""Counting what the live workers did not read: the past of a topic, or a dump of keys."""

from __future__ import annotations

import logging
from typing import Any

from counters.checkpoints.runner import Done, Turn
from counters.errors import InputError
from counters.objects.bulk import BulkWriter
from counters.objects.dumps import Dump
from counters.objects.extraction import Extraction
from counters.objects.ranges import Range, progress_of, read
from journal_client.scan import TopicScan

logger = logging.getLogger(__name__)

BATCH = 200_000
"""Keys per batch."""


class DumpBackfill:
    """Counts the keys of a dump. The cursor is written with the keys."""

    unit = "keys"

    def __init__(self, name: str, counter: str, dump: Dump, writer: BulkWriter) -> None:
        self.name = name
        self._counter = counter
        self._dump = dump
        self._writer = writer

    def batch(self, turn: Turn) -> Done:
        """The next keys.

        Raises:
            InputError: the dump is not the one that the cursor is about.
        """
        known = turn.cursor.get("dump")
        if known is not None and not self._dump.continues(known):
            raise InputError(
                f"the dump is not the one {self.name} has read so far: give it another --name, or begin anew "
                f"with counters checkpoints rewind {self.name}"
            )
        chunk = self._dump.read(turn.cursor.get("at", {}), BATCH)
        for problem in chunk.problems:
            logger.warning("not counted: %s", problem)
        cursor = None if chunk.cursor is None else {"at": chunk.cursor, "dump": self._dump.fingerprint}
        done = Done(cursor, ok=len(chunk.keys), failed=chunk.failed, recorded=True)
        self._writer.add({self._counter: chunk.keys} if chunk.keys else {}, turn.advance(done))
        return done

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """How far in the dump, in its own unit."""
        return self._dump.done(cursor.get("at", {})), self._dump.total


class TopicBackfill:
    """Counts a topic from its beginning to where it ended at the start. The cursor is written with the
    keys."""

    unit = "records"

    def __init__(self, object_type: str, scan: TopicScan, writer: BulkWriter, extraction: Extraction) -> None:
        self.name = f"backfill:{object_type}"
        self._topic = extraction.topic_of(object_type)
        self._scan = scan
        self._writer = writer
        self._extraction = extraction

    def batch(self, turn: Turn) -> Done:
        """The next records."""
        begun = Range.of_cursor(turn.cursor) if turn.cursor else None
        range_ = begun or Range.between(self._scan.watermarks([self._topic]))
        portion = read(self._scan, range_, BATCH)
        cursor = None if portion.rest is None else portion.rest.cursor()
        done = Done(cursor, ok=len(portion.batch), failed=portion.failed, recorded=True)
        self._writer.add(self._extraction.keys(portion.batch), turn.advance(done))
        return done

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """Offsets done, and of how many."""
        return progress_of(cursor)
