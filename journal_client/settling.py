"""Settling a partition: find where it starts, say what is wrong with that, seek, let it flow."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from journal_client.assignment import Assignment, Problem, Start, Watermarks, choose_start
from journal_client.batch import Partition
from journal_client.config import JournalSettings, OnProblem
from journal_client.errors import GapError, ResetTopicError, Unavailable
from journal_client.handler import BatchHandler
from journal_client.librdkafka import consumer_config, is_incremental
from journal_client.metrics import JournalMetrics

logger = logging.getLogger(__name__)

COMMIT_METADATA = "the position is in the view"
"""Stands beside every offset that this package commits."""

AT_ONCE = 64
"""Partitions settled per turn: each asks the broker for its watermarks, and the loop must go on polling."""

TIMEOUT = 5.0
"""Seconds to wait for the broker to say what it has of a partition."""

PAUSE = 1.0
"""Seconds before the broker is asked again after it did not answer."""


class Settling:
    """Brings unsettled partitions to where the view stands. Called by the loop, between fetches."""

    def __init__(
        self,
        settings: JournalSettings,
        consumer: Consumer,
        assignment: Assignment,
        handler: BatchHandler,
        metrics: JournalMetrics,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._assignment = assignment
        self._handler = handler
        self._metrics = metrics
        self._incremental = is_incremental(consumer_config(settings))
        self._stopped: set[Partition] = set()
        self._not_before = 0.0
        self.high: dict[Partition, int] = {}
        """High watermark of each partition when it was last settled, until the first fetch brings a newer
        one."""
        self.problem: str | None = None

    def settle(self) -> None:
        """Settle what can be settled now; what cannot stays paused and is tried again."""
        if not self._assignment.unsettled or time.monotonic() < self._not_before:
            return
        try:
            self._restart_stopped()
            some = dict(list(self._assignment.unsettled.items())[:AT_ONCE])
            for partition, start in self._starts(some).items():
                self._report(partition, start)
                self._seek(partition, start.next_offset)
        except Unavailable as problem:
            self._later(str(problem), problem.retry_after)
        except KafkaException as error:
            self._later(f"Kafka: {error.args[0].str()}", PAUSE)
        else:
            self.problem = None

    def stopped(self, partition: Partition) -> None:
        """librdkafka stopped reading ``partition``: its offset is not there (any more)."""
        known = self._assignment.next_offsets.get(partition)
        if known is not None:
            self._stopped.add(partition)
            self._assignment.unsettle(partition, known)

    def _later(self, problem: str, seconds: float) -> None:
        if self.problem is None:
            logger.warning("cannot settle partitions yet: %s", problem)
        self.problem = problem
        self._not_before = time.monotonic() + seconds

    def _starts(self, targets: Mapping[Partition, int | None]) -> dict[Partition, Start]:
        unknown = [partition for partition, target in targets.items() if target is None]
        view = dict(self._handler.positions(unknown)) if unknown else {}
        self._assignment.view_stands(view)
        view.update({partition: target for partition, target in targets.items() if target is not None})
        adopted = [p for p in unknown if view.get(p) is None and self._handler.holds_data(p.topic)]
        committed = self._committed(adopted) if adopted else {}
        starts = {}
        for partition in targets:
            marks = self._watermarks(partition)
            self._assignment.ends.setdefault(partition, marks.high)
            self.high[partition] = marks.high
            starts[partition] = choose_start(
                view.get(partition), committed.get(partition), marks, self._settings.auto_offset_reset
            )
        return starts

    def _committed(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Commits of whoever kept no position in the store. Our own say nothing about a store without
        positions:
        it was restored to a state from before they were made."""
        answer = self._consumer.committed([TopicPartition(*p) for p in partitions], timeout=TIMEOUT)
        return {
            Partition(p.topic, p.partition): p.offset
            for p in answer
            if p.offset >= 0 and p.metadata != COMMIT_METADATA
        }

    def _watermarks(self, partition: Partition) -> Watermarks:
        marks = self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=TIMEOUT)
        if marks is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no watermarks of {partition}"))
        return Watermarks(*marks)

    def _report(self, partition: Partition, start: Start) -> None:
        if start.problem is Problem.GAP:
            missing = start.next_offset - start.wanted
            text = (
                f"offset {start.wanted} of {partition} is below the low watermark {start.next_offset}: "
                f"{missing} records expired before they were read"
            )
            self._metrics.gaps.labels(partition.topic).inc()
            self._metrics.gap_records.labels(partition.topic).inc(missing)
            if self._settings.on_gap is OnProblem.STOP:
                raise GapError(f"{text}; set journal.on_gap to continue to go on without them")
            logger.error("%s; going on (journal.on_gap)", text)
        elif start.problem is Problem.RESET_TOPIC:
            text = (
                f"offset {start.wanted} of {partition} is above its high watermark {self.high[partition]}: "
                "the topic was deleted and created anew"
            )
            self._metrics.topic_resets.labels(partition.topic).inc()
            if self._settings.on_reset is OnProblem.STOP:
                raise ResetTopicError(
                    f"{text}; set journal.on_reset to continue to read it from its beginning"
                )
            logger.error("%s; reading it from its beginning (journal.on_reset)", text)
        else:
            logger.info("%s starts at %d (%s)", partition, start.next_offset, start.origin)

    def _seek(self, partition: Partition, next_offset: int) -> None:
        where = TopicPartition(partition.topic, partition.partition, next_offset)
        try:
            self._consumer.seek(where)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            return  # not fetching yet: next turn
        self._consumer.resume([where])
        self._assignment.settle(partition, next_offset)

    def _restart_stopped(self) -> None:
        """A partition that librdkafka stopped cannot be sought; it has to be assigned again."""
        stopped, self._stopped = self._stopped & self._assignment.owned, set()
        if not stopped:
            return
        if self._incremental:
            again = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in stopped]
            self._consumer.incremental_unassign(again)
            self._consumer.incremental_assign(again)
        else:  # eager: only everything at once
            again = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in self._assignment.owned]
            self._consumer.assign(again)
            for partition, next_offset in list(self._assignment.next_offsets.items()):
                self._assignment.unsettle(partition, next_offset)
        self._consumer.pause(again)
