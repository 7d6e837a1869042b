"""A fixed range of topics, and how far it is read, as the cursor of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from journal_client.assignment import Watermarks
from journal_client.batch import Batch, Partition
from journal_client.scan import TopicScan


@dataclass(frozen=True, slots=True)
class Range:
    """Records from ``starts`` to before ``ends``, of which those before ``next_offsets`` are done."""

    starts: Mapping[Partition, int]
    next_offsets: Mapping[Partition, int]
    ends: Mapping[Partition, int]

    @classmethod
    def between(cls, marks: Mapping[Partition, Watermarks]) -> Self:
        """Everything the broker has."""
        starts = {partition: mark.low for partition, mark in marks.items()}
        return cls(starts, starts, {partition: mark.high for partition, mark in marks.items()})

    @classmethod
    def of_cursor(cls, cursor: Mapping[str, Any]) -> Self:
        """The reverse of :meth:`cursor`."""
        rows = {_partition(name): row for name, row in cursor["range"].items()}
        starts, next_offsets, ends = ({p: int(row[n]) for p, row in rows.items()} for n in range(3))
        return cls(starts, next_offsets, ends)

    def cursor(self) -> dict[str, Any]:
        """Per partition start, next offset and end, as JSON can say it."""
        return {
            "range": {
                f"{p.topic}:{p.partition}": [self.starts[p], offset, self.ends[p]]
                for p, offset in self.next_offsets.items()
            }
        }

    def after(self, batch: Batch) -> Range:
        """The range once ``batch`` is done."""
        return Range(self.starts, {**self.next_offsets, **batch.next_offsets}, self.ends)

    def progress(self) -> tuple[int, int]:
        """Offsets done, and of how many."""
        start = sum(self.starts.values())
        return sum(self.next_offsets.values()) - start, sum(self.ends.values()) - start


@dataclass(frozen=True, slots=True)
class Portion:
    """What was read of a range at once.

    Attributes:
        batch: the records.
        rest: the range after them; None: there was nothing left, and the batch is empty.
        failed: records passed over, because they have no key or cannot be decoded.
    """

    batch: Batch
    rest: Range | None
    failed: int


def read(scan: TopicScan, range_: Range, limit: int) -> Portion:
    """The next records of a range, ``limit`` at most; raises what the scan raises."""
    before = scan.set_aside.total()
    batch = scan.read(range_.next_offsets, range_.ends, limit)
    return Portion(batch, range_.after(batch) if batch else None, scan.set_aside.total() - before)


def progress_of(cursor: Mapping[str, Any]) -> tuple[int, int | None]:
    """Offsets done, and of how many, by the cursor of a task."""
    return Range.of_cursor(cursor).progress() if "range" in cursor else (0, None)


def _partition(name: str) -> Partition:
    topic, _, number = name.rpartition(":")
    return Partition(topic, int(number))
