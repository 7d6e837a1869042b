"""JournalWriter and Throttle against a broker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from journal_client.embedded import EmbeddedKafka
from journal_client.errors import BrokerUnreachable, ConfigurationError, DeliveryError
from journal_client.pytest_plugin import wait_for
from journal_client.serialization import partition_of
from journal_client.throttle import Throttle
from journal_client.writer import JournalWriter

Create = Callable[..., None]


def read(bootstrap: str, topic: str, count: int) -> list[Message]:
    """The first ``count`` records of the topic's four partitions."""
    found: list[Message] = []
    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(topic, n, 0) for n in range(4)])
        wait_for(lambda: found.extend(consumer.consume(count, 0.1)) or len(found) >= count)
    return found


@pytest.fixture
def doomed(journal_prefix: str) -> Iterator[tuple[EmbeddedKafka, JournalWriter]]:
    """A writer with little patience, and its broker, to be killed."""
    with EmbeddedKafka() as kafka:
        settings = {"delivery.timeout.ms": 300, "linger.ms": 0, "queue.buffering.max.messages": 10}
        yield kafka, JournalWriter(kafka.bootstrap_servers, journal_prefix, kafka=settings)


def test_keys_and_values_arrive_as_they_are(
    kafka_server: str, journal_prefix: str, create_topics: Create, journal_writer: JournalWriter
) -> None:
    create_topics("content")
    written = {
        b"": b"empty key",
        b"\x00\xff": b"",
        b"gone": None,
        b"k" * 65536: b"long key",
        b"big": b"v" * 10**6,
    }
    for key, value in written.items():
        journal_writer.write("content", key, value)
    journal_writer.flush()
    records = read(kafka_server, f"{journal_prefix}.content", len(written))
    assert {record.key(): record.value() for record in records} == written


def test_a_key_goes_where_javas_partitioner_puts_it(
    kafka_server: str, journal_prefix: str, create_topics: Create, journal_writer: JournalWriter
) -> None:
    create_topics("content")
    for n in range(50):
        journal_writer.write("content", b"key %d" % n, b"")
    journal_writer.flush()
    for record in read(kafka_server, f"{journal_prefix}.content", 50):
        assert record.partition() == partition_of(record.key() or b"", 4)


def test_records_with_one_partition_key_land_together(
    kafka_server: str, journal_prefix: str, create_topics: Create, journal_writer: JournalWriter
) -> None:
    create_topics("content")
    for n in range(50):
        journal_writer.write("content", b"key %d" % n, b"", partition_key=b"repository")
    journal_writer.flush()
    records = read(kafka_server, f"{journal_prefix}.content", 50)
    assert {record.partition() for record in records} == {partition_of(b"repository", 4)}


def test_leaving_the_context_flushes(kafka_server: str, journal_prefix: str, create_topics: Create) -> None:
    create_topics("content")
    with JournalWriter(kafka_server, journal_prefix, kafka={"linger.ms": 30_000}) as writer:
        writer.write("content", b"key", b"value")
    assert len(read(kafka_server, f"{journal_prefix}.content", 1)) == 1


def test_a_setting_that_librdkafka_refuses_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"journal\.kafka: .*linger\.millis"):
        JournalWriter("127.0.0.1:1", "prefix", kafka={"linger.millis": 1})


def test_an_unreachable_broker_is_named_before_the_first_record() -> None:
    writer = JournalWriter("127.0.0.1:1", "prefix")
    with pytest.raises(
        BrokerUnreachable, match=r"127\.0\.0\.1:1 .*0\.2 s.*Connection refused.*journal\.brokers"
    ):
        writer.check(timeout=0.2)


def test_a_record_too_large_for_the_broker_is_refused(journal_writer: JournalWriter) -> None:
    with pytest.raises(DeliveryError, match=r"record 6b6579 was not written to test\..*too large"):
        journal_writer.write("content", b"key", b"v" * 2_000_000)


def test_an_undelivered_record_raises_at_flush(doomed: tuple[EmbeddedKafka, JournalWriter]) -> None:
    kafka, writer = doomed
    writer.check()
    kafka.kill()
    writer.write("content", b"lost", b"value")
    with pytest.raises(
        DeliveryError, match=r"record 6c6f7374 was not written to test\.\w+\.objects\.content: .*timed out"
    ):
        writer.flush()


def test_an_undelivered_record_raises_at_the_next_write(doomed: tuple[EmbeddedKafka, JournalWriter]) -> None:
    kafka, writer = doomed
    writer.check()
    kafka.kill()

    def write_until_refused() -> bool:
        try:
            writer.write("content", b"lost", b"value")
        except DeliveryError:
            return True
        return False

    wait_for(write_until_refused, message="no write told of the loss")


def test_leaving_the_context_raises_what_was_not_delivered(
    doomed: tuple[EmbeddedKafka, JournalWriter],
) -> None:
    kafka, writer = doomed
    writer.check()
    kafka.kill()
    writer.write("content", b"lost", b"value")
    writer.write("content", b"lost too", b"value")
    with pytest.raises(DeliveryError, match=r"\(and 1 more\)"), writer:
        pass


def test_flush_in_vain_counts_what_is_not_acknowledged(journal_prefix: str) -> None:
    with EmbeddedKafka() as kafka, closing(JournalWriter(kafka.bootstrap_servers, journal_prefix)) as writer:
        writer.check()
        kafka.pause()
        writer.write("content", b"key", b"value")
        with pytest.raises(DeliveryError, match=r"1 records .* not acknowledged within 0\.1 s"):
            writer.flush(0.1)
        kafka.resume()


def test_the_throttle_holds_the_writer_until_the_group_has_read(
    kafka_server: str, journal_prefix: str, journal_group: str, create_topics: Create
) -> None:
    create_topics("content")
    written: list[int] = []
    topic, partition = f"{journal_prefix}.content", partition_of(b"one", 4)
    group = {"bootstrap.servers": kafka_server, "group.id": journal_group, "enable.auto.commit": False}
    with (
        Throttle(kafka_server, journal_group, max_messages=10) as throttle,
        JournalWriter(kafka_server, journal_prefix, kafka={"linger.ms": 0}, throttle=throttle) as writer,
        closing(Consumer(group)) as member,
    ):

        def write() -> None:
            for n in range(40):
                writer.write("content", b"key %d" % n, b"", partition_key=b"one")
                written.append(n)

        def is_held_at(count: int) -> bool:
            wait_for(lambda: len(written) >= count, message=f"{count} records are not written")
            thread.join(0.2)  # time enough to write more, were the writer not held
            return len(written) == count

        def commit(offset: int) -> None:
            member.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        assert is_held_at(10)
        commit(7)
        assert is_held_at(17)
        commit(40)
        assert is_held_at(40)


def test_a_throttled_writer_loses_nothing_on_a_broker_that_holds_little(
    kafka_server: str, journal_prefix: str, journal_group: str, create_topics: Create
) -> None:
    create_topics("content")
    noise = random.Random(7)
    records = 3_000  # of 5 kB: three times what the embedded broker holds of a partition
    group = {"bootstrap.servers": kafka_server, "group.id": journal_group, "enable.auto.commit": False}
    seen: set[bytes | None] = set()
    with (
        Throttle(kafka_server, journal_group) as throttle,
        JournalWriter(kafka_server, journal_prefix, kafka={"linger.ms": 1}, throttle=throttle) as writer,
        closing(Consumer(group)) as member,
    ):

        def write() -> None:
            for n in range(records):
                writer.write("content", b"%d" % n, noise.randbytes(5_000), partition_key=b"one")

        def read_some() -> bool:
            batch = member.consume(500, 0.1)
            seen.update(message.key() for message in batch)
            if batch:
                member.commit(batch[-1], asynchronous=False)
            return len(seen) == records

        member.assign([TopicPartition(f"{journal_prefix}.content", partition_of(b"one", 4), 0)])
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        wait_for(read_some, message="records were forgotten before they were read")
        thread.join(10.0)


def test_a_group_that_never_reads_is_an_error_that_names_it(
    kafka_server: str, journal_prefix: str, journal_group: str, create_topics: Create
) -> None:
    create_topics("content")
    with (
        Throttle(kafka_server, journal_group, max_bytes=5_000, patience=0.3) as throttle,
        closing(JournalWriter(kafka_server, journal_prefix, throttle=throttle)) as writer,
    ):
        for n in range(5):
            writer.write("content", b"key %d" % n, b"v" * 1_000, partition_key=b"one")
        with pytest.raises(DeliveryError, match=rf"group {journal_group} read nothing for 0\.3 s"):
            writer.write("content", b"one too many", b"", partition_key=b"one")
