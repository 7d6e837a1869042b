"""What the group gives and takes: the rebalance callbacks.

They run inside ``consume()``, and so never raise: see :mod:`journal_client.reports`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from journal_client.assignment import Assignment
from journal_client.batch import Partition
from journal_client.ledger import Drop
from journal_client.metrics import JournalMetrics
from journal_client.reports import Reports

logger = logging.getLogger(__name__)

Farewell = Callable[[Drop], None]
"""What to do with the open batch before partitions go."""


class Membership:
    """Keeps the assignment up to date with the group.

    Args:
        incremental: rebalances take and give single partitions (cooperative, KIP-848) instead of all.
        hand_over: makes the open batch durable while its partitions are still ours, or drops it.
        drop: drops the open batch; its partitions are somebody else's already.
    """

    def __init__(
        self,
        assignment: Assignment,
        *,
        incremental: bool,
        hand_over: Farewell,
        drop: Farewell,
        reports: Reports,
        metrics: JournalMetrics,
    ) -> None:
        self._assignment = assignment
        self._incremental = incremental
        self._hand_over = hand_over
        self._drop = drop
        self._reports = reports
        self._metrics = metrics

    def join(self, consumer: Consumer, topics: Sequence[str]) -> None:
        """Subscribe to ``topics`` (names, or a regular expression that starts with ``^``)."""
        consumer.subscribe(
            list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost
        )

    def on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        """Callback: partitions are ours. None of them flows before it is settled."""
        try:
            starts = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in given]
            (consumer.incremental_assign if self._incremental else consumer.assign)(starts)
            if starts:
                consumer.pause(starts)
            self._assignment.assigned(Partition(p.topic, p.partition) for p in given)
            self._reports.found({p.topic for p in given})
            self._metrics.rebalances.labels("assigned").inc()
            logger.info("assigned %s", _names(given))
        except Exception as error:  # kept, raised by the loop
            self._reports.failed(error)

    def on_revoke(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        """Callback: partitions are about to be taken; what was read of them is made durable first."""
        self._leave(consumer, taken, Drop.REVOKED, self._hand_over)

    def on_lost(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        """Callback: partitions are somebody else's already; nothing may be committed for them."""
        self._leave(consumer, taken, Drop.LOST, self._drop)

    def _leave(self, consumer: Consumer, taken: list[TopicPartition], kind: Drop, farewell: Farewell) -> None:
        try:
            farewell(kind)
        except Exception as error:  # kept, raised by the loop; the partitions go all the same
            self._reports.failed(error)
        try:
            self._give_back(consumer, taken)
            self._metrics.rebalances.labels(kind.value).inc()
            logger.info("%s %s", kind.value, _names(taken))
        except Exception as error:  # kept, raised by the loop
            self._reports.failed(error)

    def _give_back(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        partitions = [Partition(p.topic, p.partition) for p in taken]
        self._assignment.removed(partitions)
        if self._incremental:
            consumer.incremental_unassign(taken)
        else:
            consumer.unassign()
        for partition in partitions:
            self._metrics.forget(partition)


def _names(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(f"{p.topic}[{p.partition}]" for p in partitions) or "nothing"
