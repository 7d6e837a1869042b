"""A view of the journal kept in memory, and ways to run a reader and to write to chosen partitions."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition

from journal_client.batch import Batch, Partition
from journal_client.client import JournalClient
from journal_client.config import JournalSettings
from journal_client.errors import StalePosition
from journal_client.handler import BatchHandler, Effect
from journal_client.ledger import Ledger

Record = tuple[bytes | None, bytes | None]
"""Key and value."""


@dataclass(slots=True)
class MemoryView:
    """Remembers every key and every position it was handed, in one step.

    Attributes:
        stands: the next offset of each partition it has read.
        keys: the keys of each topic, in the order they were handled.
        adopted: it holds data without positions.
        decoders: by topic.
        failures: each call of ``handle`` takes the next of these and raises it; None succeeds.
        fail: raised by every call of ``handle`` and ``positions`` while set.
    """

    stands: dict[Partition, int] = field(default_factory=dict)
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    values: dict[str, list[object]] = field(default_factory=dict)
    batches: int = 0
    adopted: bool = False
    decoders: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)
    failures: deque[Exception | None] = field(default_factory=deque)
    fail: Exception | None = None
    calls: int = 0
    effect: Effect = Effect.POSITIONAL

    def decoder(self, topic: str) -> Callable[[bytes], object] | None:
        return self.decoders.get(topic)

    def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int | None]:
        if self.fail is not None:
            raise self.fail
        return {partition: self.stands.get(partition) for partition in partitions}

    def holds_data(self, topic: str) -> bool:
        return self.adopted

    def handle(self, batch: Batch) -> None:
        self.calls += 1
        failure = self.failures.popleft() if self.failures else self.fail
        if failure is not None:
            raise failure
        if any(self.stands.get(p, 0) >= new for p, new in batch.next_offsets.items()):
            raise StalePosition({p: self.stands.get(p) for p in batch.next_offsets})
        self.batches += 1
        self.stands.update(batch.next_offsets)
        for topic, keys in batch.keys.items():
            self.keys.setdefault(topic, []).extend(keys)
        for topic, values in batch.values.items():
            self.values.setdefault(topic, []).extend(values)

    def read(self, topic: str) -> int:
        """Records handled of ``topic``."""
        return len(self.keys.get(topic, ()))

    def counted(self, topic: str) -> Counter[bytes]:
        """How often each key of ``topic`` was handled."""
        return Counter(self.keys.get(topic, ()))


def run(settings: JournalSettings, view: BatchHandler, **changes: object) -> JournalClient:
    """Read until the end of what is there. The client, for a look at its books and metrics."""
    client = JournalClient(settings.model_copy(update={"stop_at_end": True} | changes), view)
    ledger = client.run()
    assert_balanced(ledger)
    return client


@contextmanager
def running(client: JournalClient) -> Iterator[JournalClient]:
    """``client`` reads in a thread of its own; at the end it is asked to stop, and what it raised, raised."""
    errors: list[BaseException] = []

    def target() -> None:
        try:
            client.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="reader")
    thread.start()
    try:
        yield client
    finally:
        client.stop.request()
        thread.join(timeout=30)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    assert_balanced(client.ledger)


def assert_balanced(ledger: Ledger) -> None:
    """Every record polled was handled, skipped or dropped: after the end no batch is open."""
    assert ledger.imbalance({}) == {}


def write(brokers: str, topic: str, records: Mapping[int, Iterable[bytes | Record]]) -> None:
    """Write keys, or keys and values, to chosen partitions of ``topic``."""
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "linger.ms": 1})
    for partition, some in records.items():
        for record in some:
            key, value = record if isinstance(record, tuple) else (record, None)
            producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(20) == 0


def numbered(count: int, first: int = 0) -> list[bytes]:
    """``count`` different keys."""
    return [b"key-%d" % number for number in range(first, first + count)]


def committed(settings: JournalSettings, topic: str, partitions: int = 4) -> dict[Partition, int]:
    """The offsets the group has committed; partitions without one are left out."""
    config = {"bootstrap.servers": settings.brokers, "group.id": settings.group_id, "log_level": 0}
    consumer = Consumer(config)
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        answer = consumer.committed(asked, timeout=10)
    finally:
        consumer.close()
    return {Partition(p.topic, p.partition): p.offset for p in answer if p.offset >= 0}


def commit(settings: JournalSettings, offsets: Mapping[Partition, int]) -> None:
    """Commit ``offsets`` for the group, as a reader of before did."""
    config = {"bootstrap.servers": settings.brokers, "group.id": settings.group_id, "log_level": 0}
    consumer = Consumer(config)
    try:
        asked = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        consumer.commit(offsets=asked, asynchronous=False)
    finally:
        consumer.close()


def metric(client: JournalClient, name: str, **labels: object) -> float | None:
    """A sample of the client's registry; None if the series does not exist."""
    return client.metrics.registry.get_sample_value(name, {k: str(v) for k, v in labels.items()})
