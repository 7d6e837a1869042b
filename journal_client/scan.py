"""Reading a fixed range of topics beside the live workers: for tasks that count again, or count what is
there.

No group is joined and nothing is committed: the truth about the position is in the store of the task. It is
given with every read, and when it is where the consumer already stands, reading simply goes on with what was
fetched ahead.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from journal_client.assignment import Watermarks
from journal_client.batch import Batch, Partition
from journal_client.config import JournalSettings
from journal_client.errors import FatalError, ResetTopicError, Unavailable
from journal_client.handler import Decoder
from journal_client.intake import Intake
from journal_client.ledger import Ledger, Skip
from journal_client.librdkafka import connect, consumer_config

logger = logging.getLogger(__name__)

FETCH = 1_000
"""Records per ``consume()``, as in the loop: larger fetches are slower."""

POLL = 0.1
"""Seconds one ``consume()`` waits at most."""

ASK = 5.0
"""Seconds one question to the broker waits at most before it is asked again."""

_NOT_THERE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""What librdkafka says of a missing topic, but also of any topic while no broker answers."""


class UnknownTopicError(FatalError):
    """A topic, or a partition of it, that should be read does not exist."""


class RangeReader:
    """The messages of chosen partitions between two offsets each. A context manager: it holds a consumer.

    Attributes:
        standing: where reading goes on, for each partition that has not reached its end. All of them, and no
            others, are assigned.
        moved: where reading goes on, for each partition that moved since :meth:`start`; never beyond its end.
        expired: records that were asked for and that the broker did not have any more.
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self.standing: dict[Partition, int] = {}
        self.moved: dict[Partition, int] = {}
        self.expired = 0
        self._reported: dict[Partition, int] = {}
        """Below these offsets all that expired is counted."""
        self._ends: dict[Partition, int] = {}
        self._progress_at = 0.0
        self._trouble = ""

    def __enter__(self) -> Self:
        config = {
            **consumer_config(self._settings),
            # says that an end is reached also where compaction left no record to say it
            "enable.partition.eof": True,
            "error_cb": self._troubled,
        }
        self._consumer: Consumer = connect(self._settings, config)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def watermarks(self, topics: Collection[str]) -> dict[Partition, Watermarks]:
        """What the broker has of every partition of ``topics`` now.

        Raises:
            UnknownTopicError: one of them does not exist.
            Unavailable: no broker answered within ``journal.start_timeout``.
        """
        deadline = time.monotonic() + self._settings.start_timeout
        partitions = [
            Partition(topic, number)
            for topic in topics
            for number in self._numbers(topic, deadline - time.monotonic())
        ]
        return {partition: self._watermarks(partition, deadline) for partition in partitions}

    def start(self, next_offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Read these partitions, and no others, from ``next_offsets`` to ``ends``.

        Those that stand there already keep what was fetched ahead.

        Raises:
            UnknownTopicError: one of them does not exist.
            ResetTopicError: one of them is shorter than its position or its end.
            Unavailable: no broker answered within ``journal.start_timeout``.
        """
        self._ends = dict(ends)
        self.moved = {}
        self._progress_at = time.monotonic()
        wanted = {p: offset for p, offset in next_offsets.items() if offset < ends[p]}
        with self._whole_or_forgotten():
            self._leave([p for p in self.standing if wanted.get(p) != self.standing[p]])
            self._assign({p: offset for p, offset in wanted.items() if p not in self.standing})

    def fetch(self, limit: int) -> Sequence[Message]:
        """At most ``limit`` messages, free of errors, waiting a moment for them; perhaps none.

        Raises:
            UnknownTopicError, ResetTopicError: a topic was deleted meanwhile.
            FatalError: the consumer cannot go on.
            Unavailable: nothing has come for ``journal.start_timeout``.
        """
        with self._whole_or_forgotten():
            left = sum(self._ends[p] - offset for p, offset in self.standing.items())
            messages: Sequence[Message] = self._consumer.consume(min(FETCH, limit, left), POLL)
            if any(map(Message.error, messages)):
                messages = self._without_errors(messages)
            self._advance_to_positions()
            messages = self._within_ends(messages)
            now = time.monotonic()
            if messages:
                self._progress_at = now
            elif self.standing and now > self._progress_at + self._settings.start_timeout:
                for partition in self.standing:  # of a topic that was deleted, nothing is heard at all
                    self._must_exist(partition, min(ASK, self._settings.start_timeout))
                raise self._unavailable()
            return messages

    @contextmanager
    def _whole_or_forgotten(self) -> Iterator[None]:
        """A step cut short, by a signal perhaps, may have lost messages: the next start assigns anew."""
        try:
            yield
        except BaseException:
            self.standing = {}
            self._consumer.unassign()
            raise

    # -- where to read -----------------------------------------------------------------------------

    def _assign(self, positions: Mapping[Partition, int]) -> None:
        deadline = time.monotonic() + self._settings.start_timeout
        starts = {}
        for partition, wanted in positions.items():
            marks = self._watermarks(partition, deadline)
            end = self._ends[partition]
            if end > marks.high:
                what = f"offset {wanted}" if wanted > marks.high else f"the end {end}"
                raise ResetTopicError(
                    f"{what} of {partition} is above its high watermark {marks.high}: "
                    "the topic was deleted and created anew; start the task over"
                )
            first = min(max(wanted, marks.low), end)
            if first > wanted:
                self._expire(partition, wanted, first)
                self.moved[partition] = first
            if first < end:
                starts[partition] = first
        if starts:
            self._consumer.incremental_assign([TopicPartition(*p, offset) for p, offset in starts.items()])
            self.standing.update(starts)

    def _expire(self, partition: Partition, wanted: int, first: int) -> None:
        """Count and say what is gone, once, however often it is asked for."""
        self._progress_at = time.monotonic()
        known = max(wanted, self._reported.get(partition, 0))
        if known < first:
            self._reported[partition] = first
            self.expired += first - known
            logger.error(
                "offsets %d to %d of %s expired before they were read; going on at %d",
                known,
                first - 1,
                partition,
                first,
            )

    def _leave(self, partitions: Sequence[Partition]) -> None:
        if partitions:
            self._consumer.incremental_unassign([TopicPartition(*p) for p in partitions])
            for partition in partitions:
                del self.standing[partition]

    # -- what came ---------------------------------------------------------------------------------

    def _advance(self, partition: Partition, next_offset: int) -> None:
        if next_offset > self.standing.get(partition, next_offset):
            self.standing[partition] = next_offset
            self.moved[partition] = min(next_offset, self._ends[partition])
            self._progress_at = time.monotonic()

    def _advance_to_positions(self) -> None:
        """A position is unknown (negative) until the first record; markers of transactions move it too."""
        for p in self._consumer.position([TopicPartition(*partition) for partition in self.standing]):
            self._advance(Partition(p.topic, p.partition), p.offset)

    def _within_ends(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Leave the partitions that reached their end, and drop what they brought beyond it."""
        ended = [p for p, offset in self.standing.items() if offset >= self._ends[p]]
        beyond = {p for p in ended if self.standing[p] > self._ends[p]}
        self._leave(ended)
        if not beyond:
            return messages
        ends = {(p.topic, p.partition): self._ends[p] for p in beyond}
        return [
            m
            for m in messages
            if (m.offset() or 0) < ends.get((m.topic() or "", m.partition() or 0), 1 << 63)
        ]

    def _without_errors(self, messages: Sequence[Message]) -> Sequence[Message]:
        records = []
        again = set()
        for message in messages:
            error = message.error()
            partition = Partition(message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            if error is None:
                records.append(message)
                self._advance(partition, offset + 1)  # an error may clear the position
            elif error.code() == KafkaError._PARTITION_EOF:
                self._advance(partition, offset)
            elif error.fatal():
                raise FatalError(f"Kafka: {error.str()}")
            else:
                self._trouble = error.str()
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, *_NOT_THERE):
                    again.add(partition)
        stopped = {p: offset for p, offset in self.standing.items() if p in again and offset < self._ends[p]}
        if stopped:  # reading ended there: see what the broker has, and begin again
            self._leave(list(stopped))
            self._assign(stopped)
        return records

    # -- questions to the broker -------------------------------------------------------------------

    def _numbers(self, topic: str, timeout: float) -> list[int]:
        """The numbers of the partitions of ``topic``."""
        try:
            # of all topics: some brokers create the one that is asked about
            found = self._consumer.list_topics(timeout=max(timeout, POLL)).topics.get(topic)
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error
        if found is None or (found.error is not None and found.error.code() in _NOT_THERE):
            raise UnknownTopicError(
                f"topic {topic} does not exist at {self._settings.brokers}; "
                "check journal.prefix and journal.brokers"
            )
        if found.error is not None:
            raise self._unavailable(found.error.str())
        return sorted(found.partitions)

    def _watermarks(self, partition: Partition, deadline: float) -> Watermarks:
        where = TopicPartition(*partition)
        while True:
            left = deadline - time.monotonic()
            try:
                marks = self._consumer.get_watermark_offsets(where, timeout=min(ASK, max(left, POLL)))
                if marks is not None:
                    return Watermarks(*marks)
            except KafkaException as error:
                self._trouble = error.args[0].str()
                if error.args[0].code() in _NOT_THERE:
                    self._must_exist(partition, left)
            if left <= 0:
                raise self._unavailable()
            time.sleep(min(POLL, left))

    def _must_exist(self, partition: Partition, timeout: float) -> None:
        if partition.partition not in self._numbers(partition.topic, timeout):
            raise UnknownTopicError(
                f"{partition} does not exist at {self._settings.brokers}: the topic was deleted and "
                "created anew with fewer partitions; start the task over"
            )

    def _troubled(self, error: KafkaError) -> None:
        # a callback: what it raised would destroy messages. "All brokers are down" follows the reason
        if not self._trouble or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str()

    def _unavailable(self, reason: str = "") -> Unavailable:
        reason = reason or self._trouble
        return Unavailable(
            f"nothing came from the Kafka brokers at {self._settings.brokers} for "
            f"{self._settings.start_timeout:g} s{f' ({reason})' if reason else ''}; check journal.brokers"
        )


class TopicScan:
    """Batches of a fixed range of topics. A context manager: it holds a consumer.

    Attributes:
        set_aside: records read that have no key or a value that cannot be decoded, by reason. They are not
            put into quarantine: the live workers did that.
    """

    def __init__(self, settings: JournalSettings, decoder: Callable[[str], Decoder | None]) -> None:
        self._limits = settings.batch
        self._reader = RangeReader(settings)
        self._intake = Intake(decoder, Ledger(), self._count)
        self.set_aside: Counter[Skip] = Counter()

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            FatalError: librdkafka refuses a setting.
            BrokerUnreachable: no broker answered within ``journal.start_timeout``.
        """
        self._reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    @property
    def expired(self) -> int:
        """Records that were asked for and that the broker did not have any more."""
        return self._reader.expired

    def watermarks(self, topics: Collection[str]) -> dict[Partition, Watermarks]:
        """What the broker has of every partition of ``topics`` now.

        Raises:
            UnknownTopicError: one of them does not exist.
            Unavailable: no broker answered within ``journal.start_timeout``.
        """
        return self._reader.watermarks(topics)

    def read(
        self, next_offsets: Mapping[Partition, int], ends: Mapping[Partition, int], max_messages: int
    ) -> Batch:
        """The next records from ``next_offsets`` on, all of them before ``ends``.

        Args:
            next_offsets: where the store of the task stands, for every partition of the range.
            ends: for each of them, the offset to stop before.
            max_messages: records in the batch at most; ``journal.batch`` limits its bytes and seconds.

        Returns:
            A batch whose ``next_offsets`` has every partition that moved; empty exactly when every partition
            has reached its end.

        Raises:
            UnknownTopicError: a topic does not exist.
            ResetTopicError: a topic is shorter than its position or its end.
            FatalError: the consumer cannot go on.
            Unavailable: nothing came for ``journal.start_timeout``; the same may be asked again.
        """
        reader = self._reader
        reader.start(next_offsets, ends)
        batch = Batch()
        deadline = time.monotonic() + self._limits.max_seconds
        while reader.standing and (room := max_messages - len(batch)) > 0:
            self._intake.take(reader.fetch(room), batch)
            full = batch.size >= self._limits.max_bytes or time.monotonic() >= deadline
            if full and reader.moved:
                break
        batch.next_offsets = reader.moved
        return batch

    def _count(self, message: Message, reason: Skip, detail: str) -> None:
        self.set_aside[reason] += 1
        logger.debug(
            "record passed over: topic=%s partition=%s offset=%s reason=%s detail=%r",
            message.topic(),
            message.partition(),
            message.offset(),
            reason,
            detail,
        )
