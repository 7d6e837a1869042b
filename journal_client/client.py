"""The journal loop.

1. Fill a batch: many small fetches until ``max_messages``, ``max_bytes`` or ``max_seconds``.
2. Drop what is not ours any more; set error records, null keys and undecodable values aside with a reason.
3. ``handle(batch)``: the view makes effects and position durable in one write.
4. Commit the same offsets to Kafka, asynchronously: for lag tools, and as the start of last resort.
5. Publish progress: lag per partition, newest record time, the ledger.

A batch is handled whole or dropped whole. After a drop, the partitions that are still ours are read again
from where the view stands. docs/architecture.md says what happens when each step fails.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from prometheus_client import CollectorRegistry

from journal_client.assignment import ASK_THE_VIEW, Assignment
from journal_client.batch import Batch, Partition
from journal_client.config import JournalSettings
from journal_client.errors import FatalError, StalePosition, Unavailable
from journal_client.handler import BatchHandler
from journal_client.health import Health, HealthServer
from journal_client.intake import Intake
from journal_client.ledger import Drop, Ledger
from journal_client.librdkafka import connect, consumer_config, is_incremental, producer_config
from journal_client.membership import Membership
from journal_client.metrics import JournalMetrics
from journal_client.quarantine import FLUSH_TIMEOUT, open_quarantine
from journal_client.reports import Reports
from journal_client.settling import COMMIT_METADATA, Settling
from journal_client.shutdown import Stop
from journal_client.watch import Watch

logger = logging.getLogger(__name__)

FETCH = 1_000
"""Records per ``consume()``. Larger fetches are slower: 1.15 M records/s at 1,000, 0.55 M at 50,000 (for
memory)."""

POLL = 0.1
"""Seconds one ``consume()`` waits at most; also how soon a stop request is noticed."""

TURN = 1.0
"""Seconds without a record after which the loop looks around."""

CHECK_VIEW = 5.0
"""Seconds between looks at where the view stands."""


class JournalClient:
    """Reads topics of one prefix as a member of a consumer group and hands batches to a view."""

    def __init__(
        self,
        settings: JournalSettings,
        handler: BatchHandler,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._pid = os.getpid()
        self._ran = False
        self.ledger = Ledger()
        self.metrics = JournalMetrics(registry or CollectorRegistry(), self.ledger)
        self.health = Health()
        self.stop = Stop(settings.shutdown_timeout)
        self._assignment = Assignment()
        self._batch = Batch()
        self._leader_epochs: dict[Partition, int] = {}
        self._reports = Reports(settings, self.health, self.metrics)
        self._check_view_at = 0.0

    def run(self) -> Ledger:
        """Read until stopped by a signal, :attr:`stop`, ``stop_at_end`` or ``stop_after``.

        Raises:
            FatalError: with what to change. Everything handled so far is durable.
        """
        if os.getpid() != self._pid:
            raise FatalError(
                "this client was made before a fork and would receive nothing; make it in the child"
            )
        if self._ran:
            raise FatalError("this client has run already, and its ledger is closed; make another one")
        self._ran = True
        self._quarantine = open_quarantine(self._settings.quarantine, producer_config(self._settings))
        self._intake = Intake(self._handler.decoder, self.ledger, self._quarantine.put)
        http = self._settings.http
        server = HealthServer(http, self.health, self.metrics.registry) if http.port is not None else None
        if server is not None:
            logger.info("health and metrics on port=%d", server.port)
        try:
            self._consumer = self._connect()
            try:
                self._subscribe()
                while not self._finished():
                    self._turn()
                self._flush_once(Drop.UNAVAILABLE)
            finally:
                self.stop.request()  # from here on the watchdog counts
                self._close()
        finally:
            if server is not None:
                server.close()
            self._quarantine.close()
            self.stop.done()
        self._reports.raise_failure()
        return self.ledger

    # -- the loop ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._fill()
        if self._batch:
            self._flush()
        self._check_view()
        self._watch.look_around()

    def _finished(self) -> bool:
        if self.stop:
            return True
        if self._settings.stop_at_end and (self._assignment.at_end() or self._nothing_to_read()):
            return True
        limit = self._settings.stop_after
        return limit is not None and self.ledger.polled.total() >= limit

    def _nothing_to_read(self) -> bool:
        """No topic exists; without one the group assigns nothing, not even an empty list."""
        return not self._assignment.ever_assigned and self._reports.missing.issuperset(self._topics)

    def _fill(self) -> None:
        """Step 1. Returns when the batch is full or old enough, or when it is time to look around."""
        limits = self._settings.batch
        turn_ends = time.monotonic() + TURN
        deadline: float | None = None
        while not self._finished():
            self._fetch(POLL)
            self._settling.settle()
            self.health.settling_problem = self._settling.problem
            now = time.monotonic()
            if not self._batch:
                if now >= turn_ends:
                    return
                continue
            deadline = now + limits.max_seconds if deadline is None else deadline
            full = len(self._batch) >= limits.max_messages or self._batch.size >= limits.max_bytes
            if full or now >= deadline:
                return

    def _fetch(self, timeout: float) -> None:
        """Step 2: one ``consume()`` into the batch. Rebalance callbacks run inside it."""
        assignment = self._assignment
        number = assignment.number
        room = self._settings.batch.max_messages - len(self._batch)
        messages = self._consumer.consume(min(FETCH, room), timeout)
        self.health.turn()
        self._reports.raise_failure()
        if not messages:
            self._advance_to_positions()  # transaction markers move a position without a record
            return
        self.health.brokers_down = False
        errors: list[Message] = []
        if any(map(Message.error, messages)):
            errors = [m for m in messages if m.error() is not None]
            messages = [m for m in messages if m.error() is None]
        if assignment.unsettled or assignment.number != number:
            messages = self._only_ours(messages)
        self._intake.take(messages, self._batch)
        if errors:
            # an error about a partition may clear its position: trust the records instead
            self._advance((_partition(m), _next_offset_after(m), None) for m in messages)
            for message in errors:
                self._take_error(message)
        else:
            self._advance_to_positions()

    def _only_ours(self, messages: Sequence[Message]) -> list[Message]:
        """The records whose partition is ours and settled; a rebalance may have happened half-way through."""
        kept = []
        for message in messages:
            partition = _partition(message)
            if partition in self._assignment.next_offsets:
                kept.append(message)
                continue
            reason = Drop.UNSETTLED if partition in self._assignment.unsettled else Drop.NOT_OURS
            self.ledger.polled[partition.topic] += 1
            self.ledger.dropped[partition.topic, reason] += 1
        return kept

    def _flowing(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, number in self._assignment.next_offsets]

    def _advance_to_positions(self) -> None:
        positions = self._consumer.position(self._flowing())
        self._advance((Partition(p.topic, p.partition), p.offset, p.leader_epoch) for p in positions)

    def _advance(self, positions: Iterable[tuple[Partition, int, int | None]]) -> None:
        """Note how far the consumer got; a position is unknown (negative) until the first record after a
        seek."""
        known = self._assignment.next_offsets
        for partition, next_offset, leader_epoch in positions:
            if next_offset > known.get(partition, next_offset):
                known[partition] = next_offset
                self._batch.next_offsets[partition] = next_offset
                self._leader_epochs[partition] = -1 if leader_epoch is None else leader_epoch

    def _flush(self) -> None:
        """Steps 3 and 4, for as long as the store takes, polling on so that the group keeps us."""
        batch = self._batch
        paused = False
        while self._batch is batch and not self.stop:
            try:
                self._attempt(batch)
            except StalePosition as stale:
                self._refused(stale)
            except Unavailable as problem:
                if not paused:
                    logger.warning("the store takes no batches: %s", problem)
                paused = True
                self._store_problem(str(problem))
                self._poll_paused(problem.retry_after)
        if paused:
            self._consumer.resume(self._flowing())

    def _attempt(self, batch: Batch, timeout: float = FLUSH_TIMEOUT) -> None:
        """Steps 3, 4 and the books."""
        self._quarantine.flush(timeout)
        with self.metrics.handle_seconds.time():
            self._handler.handle(batch)
        self._store_problem(None)
        self._batch = Batch()
        self._assignment.view_stands(batch.next_offsets)
        for topic, n in batch.counts().items():
            self.ledger.handled[topic] += n
        self.metrics.batch_records.observe(len(batch))
        if batch.newest > 0:
            self.metrics.newest.set(batch.newest / 1000)
        self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        """Step 4. A commit that fails costs nothing: the view has its own position."""
        owned = self._assignment.owned
        offsets = [
            TopicPartition(p.topic, p.partition, offset, COMMIT_METADATA, self._leader_epochs.get(p, -1))
            for p, offset in batch.next_offsets.items()
            if p in owned  # the broker would accept a commit for a partition of another member
        ]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self._reports.count(error.args[0])

    def _refused(self, stale: StalePosition) -> None:
        logger.warning("batch refused, reading again from the view's position: %s", stale)
        self.metrics.stale_positions.labels(stale.reason).inc()
        self._read_again(stale.positions)

    def _read_again(self, positions: Mapping[Partition, int | None]) -> None:
        self._drop(Drop.STALE)
        self._assignment.view_stands(positions)
        for partition, target in positions.items():
            self._unsettle(partition, target)

    def _check_view(self) -> None:
        """Notice a store that was restored or wiped also when no batch comes by to be refused."""
        now = time.monotonic()
        if now < self._check_view_at:
            return
        self._check_view_at = now + CHECK_VIEW
        believed = {p: n for p, n in self._assignment.view.items() if p in self._assignment.next_offsets}
        try:
            found = self._handler.positions(believed)
        except Unavailable as problem:
            self._check_view_at = now + max(CHECK_VIEW, problem.retry_after)
            self._store_problem(str(problem))
            return
        self._store_problem(None)
        elsewhere = {p: found[p] for p, n in believed.items() if found[p] != n}
        if elsewhere:
            logger.warning("the view stands elsewhere, reading again from there: %s", elsewhere)
            self.metrics.stale_positions.labels("idle").inc()
            self._read_again(elsewhere)

    def _poll_paused(self, seconds: float) -> None:
        """Keep the group's heart beating while the store is down; nothing may flow."""
        until = time.monotonic() + seconds
        batch = self._batch
        self._consumer.pause(self._flowing())
        while self._batch is batch and not self.stop and (left := until - time.monotonic()) > 0:
            messages = self._consumer.consume(FETCH, min(left, POLL))
            self.health.turn()
            self._reports.raise_failure()
            for message in messages:
                if message.error() is not None:
                    self._take_error(message)
                    continue
                # fetched before the pause took hold: read it again later
                partition = _partition(message)
                self.ledger.polled[partition.topic] += 1
                self.ledger.dropped[partition.topic, Drop.UNSETTLED] += 1
                if partition in self._assignment.next_offsets:
                    self._unsettle(partition, self._assignment.next_offsets[partition])
            self._watch.look_around()

    def _flush_once(self, otherwise: Drop) -> None:
        """Hand over the open batch now or drop it; for when there is no time to wait for the store."""
        if not self._batch:
            return
        until = time.monotonic() + self._settings.revoke_timeout
        if self.health.store_problem is None:
            try:
                self._attempt(self._batch, timeout=until - time.monotonic())
            except StalePosition as stale:
                self._refused(stale)
            except Unavailable as problem:
                logger.warning("the store takes no batches: %s", problem)
                self._drop(otherwise)
        else:
            self._drop(otherwise)

    def _store_problem(self, problem: str | None) -> None:
        self.health.store_problem = problem
        self.metrics.store_unavailable.set(problem is not None)

    def _drop(self, reason: Drop) -> None:
        """Put the open batch back. What it held of partitions that stay ours is read again."""
        batch, self._batch = self._batch, Batch()
        for topic, n in batch.counts().items():
            self.ledger.dropped[topic, reason] += n
        owned = self._assignment.owned  # also what was unsettled since: its target lies behind this batch
        for partition in batch.next_offsets.keys() & owned:
            self._unsettle(partition, ASK_THE_VIEW)

    def _take_error(self, message: Message) -> None:
        stopped = self._reports.stopped_partition(message)
        if stopped is not None:
            self._settling.stopped(stopped)

    def _unsettle(self, partition: Partition, target: int | None) -> None:
        if partition in self._assignment.next_offsets:
            self._consumer.pause([TopicPartition(partition.topic, partition.partition)])
        self._assignment.unsettle(partition, target)

    # -- beginning and end -------------------------------------------------------------------------

    def _connect(self) -> Consumer:
        callbacks = {"error_cb": self._reports.on_error, "on_commit": self._reports.on_commit}
        return connect(self._settings, {**consumer_config(self._settings), **callbacks})

    def _subscribe(self) -> None:
        prefix, types = self._settings.prefix, self._settings.object_types
        self._topics = [f"{prefix}.{name}" for name in types] or [f"^{re.escape(prefix)}\\..+"]
        self._settling = Settling(
            self._settings, self._consumer, self._assignment, self._handler, self.metrics
        )
        self._watch = Watch(
            self._consumer,
            self._assignment,
            self._settling,
            self.health,
            self.metrics,
            self._settings.stall_after,
        )
        Membership(
            self._assignment,
            incremental=is_incremental(consumer_config(self._settings)),
            hand_over=self._flush_once,
            drop=self._drop,
            reports=self._reports,
            metrics=self.metrics,
        ).join(self._consumer, self._topics)
        self.health.started = True
        logger.info("subscribed group=%s topics=%s", self._settings.group_id, ",".join(self._topics))

    def _close(self) -> None:
        self._consumer.close()
        imbalance = self.ledger.imbalance(self._batch.counts())
        if imbalance:
            logger.error("the ledger does not add up: %s", imbalance)
        logger.info("closed ledger=%s", self.ledger.summary())


def _partition(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)


def _next_offset_after(message: Message) -> int:
    return (message.offset() or 0) + 1
