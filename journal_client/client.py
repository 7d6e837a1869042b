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

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from prometheus_client import CollectorRegistry

from journal_client.assignment import ASK_THE_VIEW, Assignment
from journal_client.batch import Batch, Partition
from journal_client.config import JournalSettings
from journal_client.errors import (
    BrokerUnreachable,
    FatalError,
    FencedError,
    StalePosition,
    Unavailable,
)
from journal_client.handler import BatchHandler
from journal_client.health import Health, HealthServer, Stalls
from journal_client.intake import Intake
from journal_client.ledger import Drop, Ledger
from journal_client.librdkafka import consumer_config, is_incremental, log, producer_config
from journal_client.metrics import JournalMetrics
from journal_client.quarantine import FLUSH_TIMEOUT, open_quarantine
from journal_client.settling import Settling
from journal_client.shutdown import Stop

logger = logging.getLogger(__name__)

FETCH = 1_000
"""Records per ``consume()``. Larger fetches are slower: 1.15 M records/s at 1,000, 0.55 M at 50,000
(memory)."""

POLL = 0.1
"""Seconds one ``consume()`` waits at most; also how soon a stop request is noticed."""

HOUSEKEEPING = 1.0
"""Seconds between updates of lag, stalls and broker reachability."""


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
        self._config = consumer_config(settings)
        self._incremental = is_incremental(self._config)
        self.ledger = Ledger()
        self.metrics = JournalMetrics(registry or CollectorRegistry(), self.ledger)
        self.health = Health()
        self.stop = Stop(settings.shutdown_timeout)
        self._assignment = Assignment()
        self._stalls = Stalls(settings.stall_after)
        self._batch = Batch()
        self._leader_epochs: dict[Partition, int] = {}
        self._missing: set[str] = set()
        self._failure: Exception | None = None
        self._housekeeping_at = 0.0
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
        self._quarantine = open_quarantine(self._settings.quarantine, producer_config(self._settings))
        self._intake = Intake(self._handler, self.ledger, self._quarantine.put)
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
        self._raise_failure()
        return self.ledger

    # -- the loop
    # ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._fill()
        if self._batch:
            self._flush()
        self._check_view()
        self._housekeep()

    def _finished(self) -> bool:
        if self.stop:
            return True
        if self._settings.stop_at_end and (self._assignment.at_end() or self._nothing_to_read()):
            return True
        limit = self._settings.stop_after
        return limit is not None and self.ledger.polled.total() >= limit

    def _nothing_to_read(self) -> bool:
        """No topic exists; without one the group assigns nothing, not even an empty list."""
        return not self._assignment.ever_assigned and self._missing.issuperset(self._topics)

    def _fill(self) -> None:
        """Step 1. Returns when the batch is full or old enough, or when it is time to look around."""
        limits = self._settings.batch
        turn_ends = time.monotonic() + HOUSEKEEPING
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
        self._raise_failure()
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
                self._note_error(message)
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
            TopicPartition(p.topic, p.partition, offset, leader_epoch=self._leader_epochs.get(p, -1))
            for p, offset in batch.next_offsets.items()
            if p in owned  # the broker would accept a commit for a partition of another member
        ]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self._count_error(error.args[0])

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
            self._raise_failure()
            for message in messages:
                if message.error() is not None:
                    self._note_error(message)
                    continue
                # fetched before the pause took hold: read it again later
                partition = _partition(message)
                self.ledger.polled[partition.topic] += 1
                self.ledger.dropped[partition.topic, Drop.UNSETTLED] += 1
                if partition in self._assignment.next_offsets:
                    self._unsettle(partition, self._assignment.next_offsets[partition])
            self._housekeep()

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

    def _drop(self, reason: Drop) -> None:
        """Put the open batch back. What it held of partitions that stay ours is read again."""
        batch, self._batch = self._batch, Batch()
        for topic, n in batch.counts().items():
            self.ledger.dropped[topic, reason] += n
        owned = self._assignment.owned  # also what was unsettled since: its target lies behind this batch
        for partition in batch.next_offsets.keys() & owned:
            self._unsettle(partition, ASK_THE_VIEW)

    def _unsettle(self, partition: Partition, target: int | None) -> None:
        if partition in self._assignment.next_offsets:
            self._consumer.pause([TopicPartition(partition.topic, partition.partition)])
        self._assignment.unsettle(partition, target)

    # -- the group
    # -----------------------------------------------------------------------------------------------

    def _connect(self) -> Consumer:
        try:
            consumer = Consumer(
                {**self._config, "error_cb": self._on_error, "on_commit": self._on_commit}, logger=log
            )
        except KafkaException as error:
            raise FatalError(f"journal.kafka: {error.args[0].str()}") from error
        try:
            consumer.list_topics(timeout=self._settings.start_timeout)
        except KafkaException as error:
            consumer.close()
            raise BrokerUnreachable(
                f"no Kafka broker at {self._settings.brokers} answered within "
                f"{self._settings.start_timeout:g} s ({error.args[0].str()}); change journal.brokers"
            ) from error
        return consumer

    def _subscribe(self) -> None:
        prefix, types = self._settings.prefix, self._settings.object_types
        self._topics = [f"{prefix}.{name}" for name in types] or [f"^{re.escape(prefix)}\\..+"]
        self._settling = Settling(
            self._settings, self._consumer, self._assignment, self._handler, self.metrics
        )
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self.health.started = True
        logger.info("subscribed group=%s topics=%s", self._settings.group_id, ",".join(self._topics))

    # Callbacks run inside consume(). One that raised would destroy the records that call had fetched, so they
    # record what went wrong and the loop raises it.

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        try:
            starts = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in given]
            (consumer.incremental_assign if self._incremental else consumer.assign)(starts)
            if starts:
                consumer.pause(starts)
            self._assignment.assigned(Partition(p.topic, p.partition) for p in given)
            self.metrics.rebalances.labels("assigned").inc()
            self._found({p.topic for p in given})
            logger.info("assigned %s", _names(given))
        except Exception as error:  # recorded, raised by the loop
            self._failure = self._failure or error

    def _on_revoke(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        try:
            self._flush_once(Drop.REVOKED)
        except Exception as error:  # recorded, raised by the loop
            self._failure = self._failure or error
        self._give_back(consumer, taken, "revoked")

    def _on_lost(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        try:
            self._drop(Drop.LOST)
        except Exception as error:  # recorded, raised by the loop
            self._failure = self._failure or error
        self._give_back(consumer, taken, "lost")

    def _give_back(self, consumer: Consumer, taken: list[TopicPartition], kind: str) -> None:
        try:
            partitions = [Partition(p.topic, p.partition) for p in taken]
            self._assignment.removed(partitions)
            if self._incremental:
                consumer.incremental_unassign(taken)
            else:
                consumer.unassign()
            for partition in partitions:
                self._forget_metrics(partition)
            self.metrics.rebalances.labels(kind).inc()
            logger.info("%s %s", kind, _names(taken))
        except Exception as error:  # recorded, raised by the loop
            self._failure = self._failure or error

    def _on_commit(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        if error is not None:
            self._count_error(error)

    def _on_error(self, error: KafkaError) -> None:
        self._count_error(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.health.brokers_down = True
        if error.fatal():
            self._failure = self._failure or self._fatal(error)

    def _note_error(self, message: Message) -> None:
        """An error that came in the place of a record."""
        error = message.error()
        if error is None:
            return
        self._count_error(error)
        topic = message.topic() or ""
        if error.fatal():
            raise self._fatal(error)
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            if topic not in self._missing:
                self._missing.add(topic)
                self.metrics.topic_missing.labels(topic).set(1)
                logger.warning(
                    "topic %s does not exist (yet); check journal.prefix, journal.object_types", topic
                )
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._settling.stopped(_partition(message))
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            logger.error("a step took longer than max.poll.interval.ms; the partitions are lost, rejoining")
        else:
            logger.warning("journal error: %s", error)

    def _fatal(self, error: KafkaError) -> FatalError:
        if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED):
            return FencedError(
                f"two members share group.instance.id={self._settings.group_instance_id} in group "
                f"{self._settings.group_id}; give each its own journal.group_instance_id"
            )
        return FatalError(f"Kafka: {error.str()}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _count_error(self, error: KafkaError) -> None:
        self.metrics.errors.labels(error.name()).inc()

    def _found(self, topics: set[str]) -> None:
        for topic in topics & self._missing:
            self._missing.remove(topic)
            self.metrics.topic_missing.remove(topic)

    def _close(self) -> None:
        self._consumer.close()
        imbalance = self.ledger.imbalance(self._batch.counts())
        if imbalance:
            logger.error("the ledger does not add up: %s", imbalance)
        logger.info("closed ledger=%s", self.ledger.summary())

    # -- looking around
    # ------------------------------------------------------------------------------------------

    def _housekeep(self) -> None:
        """Step 5."""
        now = time.monotonic()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + HOUSEKEEPING
        if self.health.brokers_down:
            self._probe_brokers()
        seen: dict[Partition, tuple[int, int]] = {}
        for partition, next_offset in self._assignment.next_offsets.items():
            marks = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            if marks is not None and marks[1] >= 0:
                seen[partition] = (next_offset, max(marks[1], self._settling.high.get(partition, 0)))
        for (topic, number), (next_offset, high) in seen.items():
            self.metrics.lag.labels(topic, number).set(max(0, high - next_offset))
            self.metrics.position.labels(topic, number).set(next_offset)
        self.metrics.assigned.set(len(self._assignment.owned))
        waiting_for_the_store = self.health.store_problem is not None
        self.health.stalled = self._stalls.observe({} if waiting_for_the_store else seen, now)
        self.metrics.stalled.set(len(self.health.stalled))

    def _probe_brokers(self) -> None:
        """librdkafka says when brokers go, not when they come back."""
        try:
            self._consumer.list_topics(timeout=0.5)
        except KafkaException:
            return
        self.health.brokers_down = False

    def _store_problem(self, problem: str | None) -> None:
        self.health.store_problem = problem
        self.metrics.store_unavailable.set(problem is not None)

    def _forget_metrics(self, partition: Partition) -> None:
        for gauge in (self.metrics.lag, self.metrics.position):
            try:
                gauge.remove(partition.topic, partition.partition)
            except KeyError:
                continue  # it never moved while it was ours


def _partition(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)


def _next_offset_after(message: Message) -> int:
    return (message.offset() or 0) + 1


def _names(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(f"{p.topic}[{p.partition}]" for p in partitions) or "nothing"
