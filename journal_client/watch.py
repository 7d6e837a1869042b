"""Looking around once a second: lag, stalled partitions, brokers that came back."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from journal_client.assignment import Assignment
from journal_client.batch import Partition
from journal_client.health import Health, Stalls
from journal_client.metrics import JournalMetrics
from journal_client.settling import Settling

EVERY = 1.0
"""Seconds between two looks."""

PROBE = 0.5
"""Seconds a broker has to answer when none did before; the loop waits for it."""


class Watch:
    """Step 5 of the loop: publishes progress and notices what stands still."""

    def __init__(
        self,
        consumer: Consumer,
        assignment: Assignment,
        settling: Settling,
        health: Health,
        metrics: JournalMetrics,
        stall_after: float,
    ) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._settling = settling
        self._health = health
        self._metrics = metrics
        self._stalls = Stalls(stall_after)
        self._next = 0.0

    def look_around(self) -> None:
        """Do nothing if the last look is less than a second ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        if self._health.brokers_down:
            self._probe_brokers()
        seen = self._positions()
        for partition, (next_offset, high) in seen.items():
            self._metrics.progress(partition, next_offset, high)
        self._metrics.assigned.set(len(self._assignment.owned))
        # a store that takes no batches is a problem of its own, not a stalled partition
        observed = seen if self._health.store_problem is None else {}
        self._health.stalled = self._stalls.observe(observed, now)
        self._metrics.stalled.set(len(self._health.stalled))

    def _positions(self) -> dict[Partition, tuple[int, int]]:
        """Next offset and high watermark of each flowing partition; absent where the latter is unknown."""
        seen = {}
        for partition, next_offset in self._assignment.next_offsets.items():
            marks = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            if marks is not None and marks[1] >= 0:
                seen[partition] = (next_offset, max(marks[1], self._settling.high.get(partition, 0)))
        return seen

    def _probe_brokers(self) -> None:
        """librdkafka says when brokers go, not when they come back."""
        try:
            self._consumer.list_topics(timeout=PROBE)
        except KafkaException:
            return
        self._health.brokers_down = False
