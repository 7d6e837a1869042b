"""A fixed range of topics, and how far it is read, as the cursor of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from counters.errors import InputError
from counters.objects import definitions
from counters.objects.extraction import Extraction
from counters.objects.store import CounterStore
from journal_client.assignment import Watermarks
from journal_client.batch import Batch, Partition
from journal_client.scan import TopicScan, UnknownTopicError


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
    def of_cursor(cls, cursor: Mapping[str, Any], task: str, topics: Collection[str]) -> Self:
        """The reverse of :meth:`cursor`, of a task that reads ``topics``.

        Raises:
            InputError: it is something else. Operators may write cursors.
        """
        try:
            rows = {_partition(name): [int(n) for n in row] for name, row in cursor["range"].items()}
            if any(not 0 <= start <= next_offset <= end for start, next_offset, end in rows.values()):
                raise ValueError
            if not {partition.topic for partition in rows} <= set(topics):
                raise ValueError
        except (KeyError, ValueError, TypeError, AttributeError):
            raise InputError(
                f'the cursor of {task} is none of this task: it has no "range" of rows '
                f'"<topic>:<partition>": [start, next offset, end] of {", ".join(topics)}; begin anew with '
                f"counters checkpoints rewind {task}"
            ) from None
        starts, next_offsets, ends = ({p: row[n] for p, row in rows.items()} for n in range(3))
        return cls(starts, next_offsets, ends)

    def cursor(self) -> dict[str, Any]:
        """Per partition start, next offset and end, as JSON can say it; for people, how much that is."""
        done, total = self.progress()
        rows = {
            f"{p.topic}:{p.partition}": [self.starts[p], offset, self.ends[p]]
            for p, offset in self.next_offsets.items()
        }
        return {"done": done, "total": total, "range": rows}

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
        expired: records of the range that the broker did not have any more.
    """

    batch: Batch
    rest: Range | None
    failed: int
    expired: int


class Journal:
    """What the topics still hold, and which counters it feeds.

    Args:
        derived: the setting ``objects.derived``, by which ``extraction`` looks into messages.
    """

    def __init__(
        self,
        scan: TopicScan,
        extraction: Extraction,
        store: CounterStore,
        derived: Mapping[str, Mapping[str, Sequence[str]]],
    ) -> None:
        self.extraction = extraction
        self._scan = scan
        self._store = store
        self._derived = derived

    def watermarks(self, object_type: str) -> dict[Partition, Watermarks]:
        """What the broker has of the topic about an object type.

        Raises:
            UnknownTopicError: there is no such topic.
            Unavailable: no broker answered.
        """
        return self._scan.watermarks([self.extraction.topic_of(object_type)])

    def feeding(self, counter: str) -> dict[Partition, Watermarks]:
        """What the broker has of every topic that feeds a counter. A derived counter need not have a topic of
        its own name, nor one of each of its sources.

        Raises:
            UnknownTopicError: there is none of them.
            Unavailable: no broker answered.
        """
        marks: dict[Partition, Watermarks] = {}
        missing: UnknownTopicError | None = None
        for topic in self.extraction.topics_of(counter):
            try:
                marks |= self._scan.watermarks([topic])
            except UnknownTopicError as error:
                missing = error
        if missing is not None and not marks:
            raise missing
        return marks

    def read(self, range_: Range, limit: int) -> Portion:
        """The next records of a range, ``limit`` at most.

        Raises:
            InputError: the workers look for something else in these topics.
            Exception: what the scan raises.
        """
        self._agree({partition.topic for partition in range_.ends})
        skipped, expired = self._scan.set_aside.total(), self._scan.expired
        batch = self._scan.read(range_.next_offsets, range_.ends, limit)
        rest = range_.after(batch) if batch else None
        return Portion(batch, rest, self._scan.set_aside.total() - skipped, self._scan.expired - expired)

    def keys_of(self, portion: Portion, counter: str) -> list[bytes]:
        """The keys of one counter."""
        return self.extraction.keys(portion.batch, only=[counter]).get(counter, [])

    def _agree(self, topics: Collection[str]) -> None:
        """Values found by other paths would be counted beside those of the workers."""
        for topic, entry in self._store.definitions(sorted(topics)).items():
            theirs = definitions.decode(entry)
            mine = definitions.of_type(self._derived, self.extraction.object_type(topic))
            if theirs is not None and theirs.counters != mine:
                raise InputError(
                    f"the workers look for {theirs.counters} in {topic}, this for {mine}; give it the same "
                    "objects.derived"
                )


def progress_of(cursor: Mapping[str, Any]) -> tuple[int, int | None]:
    """Offsets done, and of how many, by the cursor of a task; not known where that is none."""
    done, total = cursor.get("done"), cursor.get("total")
    return (done, total) if isinstance(done, int) and isinstance(total, int) else (0, None)


def _partition(name: str) -> Partition:
    topic, _, number = name.rpartition(":")
    return Partition(topic, int(number))
