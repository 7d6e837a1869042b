"""A fixed range of topics is read once, from where the caller stands, without joining the group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from reading import MemoryView, Record, committed, metric, numbered, running, write

from journal_client.assignment import Watermarks
from journal_client.batch import Batch, Partition
from journal_client.client import JournalClient
from journal_client.config import BatchLimits, JournalSettings
from journal_client.embedded import EmbeddedKafka
from journal_client.errors import BrokerUnreachable, FatalError, ResetTopicError, Unavailable
from journal_client.handler import Decoder
from journal_client.ledger import Skip
from journal_client.pytest_plugin import wait_for
from journal_client.scan import TopicScan, UnknownTopicError

Create = Callable[..., None]
Offsets = Mapping[Partition, int]

EMBEDDED = not os.environ.get("KAFKA_BOOTSTRAP_SERVERS")


def keys_only(_topic: str) -> Decoder | None:
    return None


@pytest.fixture
def topic(journal_prefix: str, create_topics: Create) -> str:
    create_topics("content")
    return f"{journal_prefix}.content"


@pytest.fixture
def scan(journal_settings: JournalSettings) -> Iterator[TopicScan]:
    with TopicScan(journal_settings, keys_only) as scan:
        yield scan


def whole(scan: TopicScan, *topics: str) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Positions and ends of all that is there."""
    marks = scan.watermarks(topics)
    return {p: mark.low for p, mark in marks.items()}, {p: mark.high for p, mark in marks.items()}


def batches(scan: TopicScan, begins: Offsets, ends: Offsets, limit: int = 1_000) -> Iterator[Batch]:
    """Read to the end as a task does that stores the position of every batch."""
    stands = dict(begins)
    while batch := scan.read(stands, ends, limit):
        stands |= batch.next_offsets
        yield batch
    assert stands == {p: max(stands[p], ends[p]) for p in stands}


def keys(found: Iterator[Batch] | list[Batch], topic: str) -> list[bytes]:
    return [key for batch in found for key in batch.keys.get(topic, [])]


def moved(found: list[Batch]) -> dict[Partition, int]:
    """Where a store stands that took these batches."""
    return {p: next_offset for batch in found for p, next_offset in batch.next_offsets.items()}


def test_a_whole_range_is_read_once_in_order(
    scan: TopicScan, journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content", "revision", "empty")
    content, revision, empty = (f"{journal_prefix}.{name}" for name in ("content", "revision", "empty"))
    write(journal_settings.brokers, content, {n: numbered(1_000, first=1_000 * n) for n in range(4)})
    write(journal_settings.brokers, revision, {2: numbered(700)})
    found = list(batches(scan, *whole(scan, content, revision, empty)))
    assert sorted(keys(found, content)) == sorted(numbered(4_000))
    assert keys(found, revision) == numbered(700)
    second = [key for key in keys(found, content) if int(key[4:]) // 1_000 == 1]
    assert second == numbered(1_000, first=1_000)


def test_the_marks_of_every_partition_are_those_of_now(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {1: numbered(3)})
    highs = [0, 3, 0, 0]
    assert scan.watermarks([topic]) == {Partition(topic, n): Watermarks(0, highs[n]) for n in range(4)}


def test_a_batch_is_empty_exactly_at_the_end(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    begins, ends = whole(scan, topic)
    (batch,) = batches(scan, begins, ends)
    assert batch.next_offsets == {Partition(topic, 0): 10}
    assert not scan.read(ends, ends, 1_000)


def test_what_is_written_meanwhile_lies_behind_the_end(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {n: numbered(500) for n in range(4)})
    begins, ends = whole(scan, topic)
    found = []
    write(journal_settings.brokers, topic, {n: numbered(500, first=500) for n in range(4)})
    for batch in batches(scan, begins, ends, 300):
        found.append(batch)
        write(journal_settings.brokers, topic, {n: numbered(50, first=1_000) for n in range(4)})
    assert sorted(keys(found, topic)) == sorted(numbered(500) * 4)
    assert moved(found) == ends


def test_what_was_fetched_from_behind_the_end_is_not_returned(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, dict.fromkeys(range(4), numbered(500)))
    begins, _ = whole(scan, topic)
    ends = {partition: 200 + partition.partition for partition in begins}
    found = list(batches(scan, begins, ends))
    assert sorted(keys(found, topic)) == sorted(key for end in ends.values() for key in numbered(end))
    assert moved(found) == ends


def test_no_batch_has_more_records_than_asked_for(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {n: numbered(250) for n in range(4)})
    sizes = [len(batch) for batch in batches(scan, *whole(scan, topic), limit=70)]
    assert max(sizes) == 70
    assert sum(sizes) == 1_000


def test_a_batch_has_no_more_bytes_than_the_settings_allow_by_much(
    journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: [(b"key", b"v" * 1_000)] * 4_000})
    limits = BatchLimits(max_bytes=100_000)
    settings = journal_settings.model_copy(update={"batch": limits})
    with TopicScan(settings, lambda _topic: len) as scan:
        sizes = [batch.size for batch in batches(scan, *whole(scan, topic), limit=4_000)]
    assert sum(sizes) == 4_000 * 1_003
    assert max(sizes) < 100_000 + 1_000 * 1_003 + 1


def test_another_scan_goes_on_where_one_stopped(journal_settings: JournalSettings, topic: str) -> None:
    write(journal_settings.brokers, topic, {n: numbered(300, first=300 * n) for n in range(4)})
    with TopicScan(journal_settings, keys_only) as first:
        stands, ends = whole(first, topic)
        batch = first.read(stands, ends, 500)
        stands |= batch.next_offsets
    with TopicScan(journal_settings, keys_only) as second:
        rest = list(batches(second, stands, ends))
    assert len(batch) == 500
    assert sorted(keys([batch, *rest], topic)) == sorted(numbered(1_200))


def test_a_caller_whose_store_went_back_reads_again_from_there(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(1_000), 1: numbered(1_000, first=1_000)})
    begins, ends = whole(scan, topic)
    scan.read(begins, ends, 1_500)
    back = begins | {Partition(topic, 0): 100, Partition(topic, 1): 900}
    found = keys(list(batches(scan, back, ends, 300)), topic)
    assert sorted(found) == sorted(numbered(900, first=100) + numbered(100, first=1_900))


def test_a_partition_read_to_its_end_may_be_read_again(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    begins, ends = whole(scan, topic)
    assert keys(batches(scan, begins, ends), topic) == numbered(10)
    assert keys(batches(scan, begins, ends), topic) == numbered(10)


def test_a_read_cut_short_by_a_signal_loses_nothing(
    scan: TopicScan, journal_settings: JournalSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(1_000)})
    begins, ends = whole(scan, topic)
    first = scan.read(begins, ends, 200)
    consumer = scan._reader._consumer

    class Interrupted:
        """The next ``consume()`` fetches records and is then interrupted: they are gone."""

        def __getattr__(self, name: str) -> object:
            return getattr(consumer, name)

        def consume(self, limit: int, timeout: float) -> object:
            wait_for(lambda: consumer.consume(limit, timeout))
            raise KeyboardInterrupt

    stands = begins | first.next_offsets
    with monkeypatch.context() as patch:
        patch.setattr(scan._reader, "_consumer", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            scan.read(stands, ends, 200)
    assert keys(batches(scan, stands, ends), topic) == numbered(800, first=200)


def test_records_that_cannot_be_used_cost_themselves_only(
    journal_settings: JournalSettings, topic: str
) -> None:
    records: list[bytes | Record] = [(None if n == 1 else b"key-%d" % n, b"%d" % n) for n in range(6)]
    records[3] = (b"key-3", b"three")
    records[4] = (b"key-4", None)
    write(journal_settings.brokers, topic, {0: records})
    with TopicScan(journal_settings, lambda _topic: int) as scan:
        (batch,) = batches(scan, *whole(scan, topic))
    assert batch.keys == {topic: [b"key-0", b"key-2", b"key-4", b"key-5"]}
    assert batch.values == {topic: [0, 2, None, 5]}
    assert scan.set_aside == {Skip.NULL_KEY: 1, Skip.UNDECODABLE: 1}


def test_nothing_but_poison_is_read_past(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: [(None, b"1")] * 10})
    (batch,) = batches(scan, *whole(scan, topic))
    assert len(batch) == 0
    assert batch.next_offsets == {Partition(topic, 0): 10}


def test_values_are_decoded_for_the_topics_that_have_a_decoder_only(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content", "revision")
    content, revision = f"{journal_prefix}.content", f"{journal_prefix}.revision"
    pairs: list[bytes | Record] = [(b"%d" % n, b"%d" % (n * n)) for n in range(500)]
    for name in (content, revision):
        write(journal_settings.brokers, name, dict.fromkeys(range(4), pairs))
    with TopicScan(journal_settings, {revision: int}.get) as scan:
        for batch in batches(scan, *whole(scan, content, revision), limit=300):
            assert content not in batch.values
            assert [int(key) ** 2 for key in batch.keys.get(revision, [])] == batch.values.get(revision, [])


def test_an_end_that_is_no_record_is_reached(
    kafka_server: str, scan: TopicScan, journal_settings: JournalSettings, journal_prefix: str, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka_server, "transactional.id": journal_prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key in numbered(5):
        producer.produce(topic, key=key, partition=0)
    producer.commit_transaction(30)
    wait_for(lambda: scan.watermarks([topic])[Partition(topic, 0)].high == 6)  # with the marker
    found = list(batches(scan, *whole(scan, topic)))
    assert keys(found, topic) == numbered(5)
    assert found[-1].next_offsets == {Partition(topic, 0): 6}


def test_an_end_that_compaction_left_empty_is_reached(
    scan: TopicScan, journal_settings: JournalSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    begins, ends = whole(scan, topic)
    consumer = scan._reader._consumer

    class Compacted:
        """No record is left, so no position is ever known; the broker only says where it ends."""

        def __getattr__(self, name: str) -> object:
            return getattr(consumer, name)

        def consume(self, limit: int, timeout: float) -> object:
            return [message for message in consumer.consume(limit, timeout) if message.error() is not None]

        def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
            return partitions

    monkeypatch.setattr(scan._reader, "_consumer", Compacted())
    (batch,) = batches(scan, begins, ends)
    assert (len(batch), batch.next_offsets) == (0, {Partition(topic, 0): 10})


def test_records_that_expired_are_counted_and_said_once(
    scan: TopicScan,
    journal_settings: JournalSettings,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition = Partition(topic, 0)
    low = expire(scan, journal_settings, partition)
    ends = {partition: low + 100}
    for _ in range(2):  # the second time, the store did not keep the position
        found = list(batches(scan, {partition: low - 50}, ends))
        assert len(keys(found, topic)) == 100
        assert found[-1].next_offsets == ends
    assert scan.expired == 50
    (record,) = (record for record in caplog.records if "expired" in record.getMessage())
    assert f"offsets {low - 50} to {low - 1} of {partition}" in record.getMessage()


def test_a_range_that_expired_whole_is_at_its_end(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    partition = Partition(topic, 0)
    low = expire(scan, journal_settings, partition)
    (batch,) = batches(scan, {partition: low - 50}, {partition: low - 10})
    assert (len(batch), batch.next_offsets, scan.expired) == (0, {partition: low - 10}, 40)


def test_records_that_expire_while_others_are_read_are_counted(
    journal_settings: JournalSettings, topic: str
) -> None:
    partition = Partition(topic, 0)
    ahead = {"fetch.max.bytes": 100_000, "message.max.bytes": 100_000, "queued.min.messages": 1}
    settings = journal_settings.model_copy(update={"kafka": journal_settings.kafka | ahead})
    records: list[bytes | Record] = [(key, b"v" * 40_000) for key in numbered(120)]
    write(settings.brokers, topic, {0: records})
    with TopicScan(settings, keys_only) as scan:
        stands, ends = whole(scan, topic)
        assert stands[partition] == 0
        found = [scan.read(stands, ends, 10)]
        expire(scan, settings, partition, records=60, left_from=60)
        found += batches(scan, stands | moved(found), ends)
        assert moved(found)[partition] == 120
        read = keys(found, topic)
        assert 0 < scan.expired == 120 - len(set(read)) == 120 - len(read)


def expire(
    scan: TopicScan, settings: JournalSettings, partition: Partition, records: int = 300, left_from: int = 150
) -> int:
    """Let a broker drop the first records of a partition; the first offset that is left."""
    topic, number = partition
    value = b"v" * 40_000
    write(settings.brokers, topic, {number: [(key, value) for key in numbered(records)]})
    if not EMBEDDED:  # the embedded one keeps 5 MiB
        admin = AdminClient({"bootstrap.servers": settings.brokers})
        for done in admin.delete_records([TopicPartition(topic, number, left_from)]).values():
            done.result(timeout=20)
    low = scan.watermarks([topic])[partition].low
    assert left_from - 50 <= low <= left_from + 50
    return low


def test_a_topic_shorter_than_the_position_is_one_line(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    partition = Partition(topic, 0)
    with pytest.raises(
        ResetTopicError, match=r"^offset 20 of \S+\[0\] is above its high watermark 10: [^\n]+$"
    ):
        scan.read({partition: 20}, {partition: 30}, 100)


def test_a_topic_shorter_than_its_end_is_one_line(
    scan: TopicScan, journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    partition = Partition(topic, 0)
    with pytest.raises(ResetTopicError, match=r"^the end 30 of \S+\[0\] is above its high watermark 10: "):
        scan.read({partition: 5}, {partition: 30}, 100)


def test_a_topic_that_does_not_exist_is_one_line(scan: TopicScan, topic: str) -> None:
    expected = r"^topic no\.such does not exist at \S+; check journal\.prefix and journal\.brokers$"
    with pytest.raises(UnknownTopicError, match=expected):
        scan.watermarks([topic, "no.such"])


@pytest.mark.skipif(EMBEDDED, reason="the embedded broker creates what it is asked about")
@pytest.mark.parametrize("partition", [Partition("no.such", 0), None], ids=["topic", "partition"])
def test_what_does_not_exist_cannot_be_read(scan: TopicScan, topic: str, partition: Partition | None) -> None:
    partition = partition or Partition(topic, 99)
    with pytest.raises(UnknownTopicError, match="does not exist"):
        scan.read({partition: 0}, {partition: 10}, 100)


@pytest.mark.skipif(EMBEDDED, reason="the embedded broker cannot delete a topic")
def test_a_topic_deleted_meanwhile_is_one_line(journal_settings: JournalSettings, topic: str) -> None:
    write(journal_settings.brokers, topic, {0: [(key, b"v" * 10_000) for key in numbered(5_000)]})
    admin = AdminClient({"bootstrap.servers": journal_settings.brokers})
    settings = journal_settings.model_copy(update={"start_timeout": 1.0})
    with TopicScan(settings, keys_only) as scan:
        stands, ends = whole(scan, topic)
        stands |= scan.read(stands, ends, 10).next_offsets
        admin.delete_topics([topic])[topic].result(timeout=20)
        with pytest.raises(UnknownTopicError, match=r"^topic \S+ does not exist at [^\n]+$"):
            list(batches(scan, stands, ends))


def test_nothing_is_committed_and_a_live_group_is_not_disturbed(
    journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {n: numbered(100, first=100 * n) for n in range(4)})
    view = MemoryView()
    live = JournalClient(journal_settings, view)
    with running(live):
        wait_for(lambda: view.read(topic) == 400)
        before = wait_for(lambda: committed(journal_settings, topic))
        with TopicScan(journal_settings, keys_only) as scan:
            found = list(batches(scan, *whole(scan, topic), limit=50))
        write(journal_settings.brokers, topic, {0: numbered(1, first=400)})
        wait_for(lambda: view.read(topic) == 401)
        assert metric(live, "journal_rebalances_total", kind="assigned") == 1
    assert len(keys(found, topic)) == 400
    assert set(view.counted(topic).values()) == {1}
    assert before == {Partition(topic, n): 100 for n in range(4)}


def test_a_scan_alone_commits_nothing(scan: TopicScan, journal_settings: JournalSettings, topic: str) -> None:
    write(journal_settings.brokers, topic, {0: numbered(100)})
    assert len(keys(batches(scan, *whole(scan, topic)), topic)) == 100
    assert committed(journal_settings, topic) == {}


def test_reading_on_keeps_what_was_fetched_ahead(
    scan: TopicScan, journal_settings: JournalSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(journal_settings.brokers, topic, {n: numbered(1_000) for n in range(4)})
    begins, ends = whole(scan, topic)
    calls: list[object] = []
    assign = scan._reader._assign
    monkeypatch.setattr(
        scan._reader, "_assign", lambda positions: (calls.append(positions), assign(positions))
    )
    assert sum(len(batch) for batch in batches(scan, begins, ends, 100)) == 4_000
    assert [positions for positions in calls if positions] == [begins]


def test_no_broker_is_one_line(journal_settings: JournalSettings) -> None:
    settings = journal_settings.model_copy(update={"brokers": "127.0.0.1:1", "start_timeout": 0.5})
    with pytest.raises(
        BrokerUnreachable, match=r"^no Kafka broker at 127\.0\.0\.1:1 [^\n]*journal\.brokers$"
    ):
        TopicScan(settings, keys_only).__enter__()


def test_a_key_that_the_library_does_not_know_is_one_line(journal_settings: JournalSettings) -> None:
    settings = journal_settings.model_copy(update={"kafka": {"no.such.key": 1}})
    with pytest.raises(FatalError, match=r'^journal\.kafka: [^\n]*"no\.such\.key"$'):
        TopicScan(settings, keys_only).__enter__()


@pytest.fixture
def own_broker() -> Iterator[EmbeddedKafka]:
    """A broker with 2,000 large records in each of 4 partitions: more than is fetched ahead at once."""
    with EmbeddedKafka() as kafka:
        records: list[bytes | Record] = [(key, b"v" * 2_000) for key in numbered(2_000)]
        write(kafka.bootstrap_servers, "own.content", dict.fromkeys(range(4), records))
        yield kafka


def settings_of(kafka: EmbeddedKafka) -> JournalSettings:
    return JournalSettings(
        brokers=kafka.bootstrap_servers,
        start_timeout=1.0,
        batch=BatchLimits(max_seconds=0.2),
        kafka={"fetch.max.bytes": 100_000, "message.max.bytes": 100_000, "queued.min.messages": 1},
    )


def test_brokers_that_go_away_are_said_in_time_and_the_same_scan_goes_on(own_broker: EmbeddedKafka) -> None:
    with TopicScan(settings_of(own_broker), keys_only) as scan:
        stands, ends = whole(scan, "own.content")
        found: list[Batch] = []

        def read_on() -> None:
            for batch in batches(scan, stands | moved(found), ends):
                found.append(batch)
                if len(found) == 1:
                    own_broker.pause()

        began = time.monotonic()
        with pytest.raises(Unavailable, match=rf"{own_broker.bootstrap_servers} for 1 s.*journal\.brokers$"):
            read_on()
        assert time.monotonic() - began < 10
        own_broker.resume()
        read_on()
    assert sorted(keys(found, "own.content")) == sorted(numbered(2_000) * 4)


def test_brokers_that_are_gone_are_unavailable_also_when_a_position_is_asked_for(
    own_broker: EmbeddedKafka,
) -> None:
    with TopicScan(settings_of(own_broker), keys_only) as scan:
        stands, ends = whole(scan, "own.content")
        own_broker.kill()
        with pytest.raises(Unavailable, match="nothing came from the Kafka brokers"):
            scan.read(stands, ends, 1_000)
        with pytest.raises(Unavailable, match="nothing came from the Kafka brokers"):
            scan.watermarks(["own.content"])
