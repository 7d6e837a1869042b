"""Where reading starts, and what happens when the position is not there (any more)."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from reading import MemoryView, commit, committed, metric, numbered, run, running, write

from journal_client.batch import Partition
from journal_client.client import JournalClient
from journal_client.config import JournalSettings, OffsetReset, OnProblem
from journal_client.errors import GapError, ResetTopicError, StalePosition, Unavailable
from journal_client.pytest_plugin import wait_for

LARGE = 500_000
"""Bytes of a value of which the embedded broker keeps ten per partition."""


@pytest.fixture
def topic(journal_prefix: str, create_topics: Callable[..., None]) -> str:
    """A topic with four empty partitions."""
    create_topics("content")
    return f"{journal_prefix}.content"


@pytest.fixture
def first(topic: str) -> Partition:
    return Partition(topic, 0)


def expire(brokers: str, partition: Partition, keys: list[bytes]) -> int:
    """Write ``keys`` and let the first of them expire; the low watermark then."""
    write(brokers, partition.topic, {partition.partition: [(key, bytes(LARGE)) for key in keys]})
    where = TopicPartition(partition.topic, partition.partition)
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "none", "log_level": 0})
    try:
        _, high = consumer.get_watermark_offsets(where, timeout=10)
        if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):  # the embedded broker forgets by itself
            where.offset = high - 10
            admin = AdminClient({"bootstrap.servers": brokers})  # must live as long as its answers
            for deleted in admin.delete_records([where]).values():
                deleted.result(timeout=20)
        low, _ = consumer.get_watermark_offsets(where, timeout=10)
    finally:
        consumer.close()
    assert 0 < low < high
    return int(low)


def test_reading_starts_where_the_view_stands(journal_settings: JournalSettings, first: Partition) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(100)})
    view = MemoryView(stands={first: 60})
    run(journal_settings, view)
    assert view.keys[first.topic] == numbered(40, first=60)


def test_a_view_without_a_position_starts_at_the_earliest_record(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10)})
    view = MemoryView()
    run(journal_settings, view)
    assert view.keys[first.topic] == numbered(10)


def test_a_view_without_a_position_can_start_at_the_latest_record(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10)})
    view = MemoryView()
    settings = journal_settings.model_copy(update={"auto_offset_reset": OffsetReset.LATEST})
    with running(JournalClient(settings, view)) as client:
        wait_for(lambda: metric(client, "journal_next_offset", topic=first.topic, partition=0) == 10)
        write(settings.brokers, first.topic, {0: numbered(5, first=10)})
        wait_for(lambda: view.read(first.topic) >= 5)
    assert view.keys[first.topic] == numbered(5, first=10)


def test_an_adopted_view_starts_where_its_group_had_committed(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(100), 1: numbered(10, first=100)})
    commit(journal_settings, {first: 70})
    view = MemoryView(adopted=True)
    run(journal_settings, view)
    assert sorted(view.keys[first.topic]) == sorted(numbered(30, first=70) + numbered(10, first=100))


def test_an_adopted_view_restored_to_before_its_adoption_does_not_trust_our_own_commits(
    journal_settings: JournalSettings, first: Partition
) -> None:
    """They are ahead of it: it had positions once, and lost what was read since."""
    write(journal_settings.brokers, first.topic, {0: numbered(100)})
    run(journal_settings, MemoryView())
    assert committed(journal_settings, first.topic) == {first: 100}
    restored = MemoryView(adopted=True)
    run(journal_settings, restored)
    assert restored.keys[first.topic] == numbered(100)


def test_what_the_group_committed_means_nothing_to_a_view_that_holds_no_data(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(100)})
    commit(journal_settings, {first: 70})
    view = MemoryView()
    run(journal_settings, view)
    assert view.keys[first.topic] == numbered(100)


def test_after_a_gap_reading_goes_on_at_the_oldest_record_left(
    journal_settings: JournalSettings, first: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    low = expire(journal_settings.brokers, first, numbered(20))
    view = MemoryView(stands={first: 3})
    client = run(journal_settings, view)
    assert view.keys[first.topic] == numbered(20 - low, first=low)
    assert metric(client, "journal_gaps_total", topic=first.topic) == 1
    assert metric(client, "journal_gap_records_total", topic=first.topic) == low - 3
    assert f"offset 3 of {first} is below the low watermark {low}: {low - 3} records expired" in caplog.text


def test_a_gap_ends_a_reader_that_is_told_to_stop(
    journal_settings: JournalSettings, first: Partition
) -> None:
    low = expire(journal_settings.brokers, first, numbered(20))
    view = MemoryView(stands={first: 3})
    with pytest.raises(GapError) as caught:
        run(journal_settings, view, on_gap=OnProblem.STOP)
    assert str(caught.value) == (
        f"offset 3 of {first} is below the low watermark {low}: {low - 3} records expired before they were "
        "read; set journal.on_gap to continue to go on without them"
    )
    assert view.keys == {}


def test_a_topic_shorter_than_what_was_read_is_read_from_its_beginning(
    journal_settings: JournalSettings, first: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10)})
    view = ForgetfulView(stands={first: 999})
    client = run(journal_settings, view)
    assert view.keys[first.topic] == numbered(10)
    assert metric(client, "journal_topic_resets_total", topic=first.topic) == 1
    assert f"offset 999 of {first} is above its high watermark 10: the topic was deleted" in caplog.text


class ForgetfulView(MemoryView):
    """Takes whatever it is handed, also what lies before its position."""

    def handle(self, batch):  # type: ignore[no-untyped-def]
        for partition in batch.next_offsets:
            self.stands.pop(partition, None)
        super().handle(batch)


def test_a_topic_shorter_than_what_was_read_ends_a_reader_that_is_told_to_stop(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10)})
    view = MemoryView(stands={first: 999})
    with pytest.raises(ResetTopicError) as caught:
        run(journal_settings, view, on_reset=OnProblem.STOP)
    assert str(caught.value) == (
        f"offset 999 of {first} is above its high watermark 10: the topic was deleted and created anew; "
        "set journal.on_reset to continue to read it from its beginning"
    )


def test_records_that_expire_while_their_reader_waits_are_a_gap_too(
    journal_settings: JournalSettings, first: Partition
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10), 1: numbered(10, first=1_000)})
    view = MemoryView(fail=Unavailable("down", retry_after=0.1))
    with running(JournalClient(journal_settings, view)) as client:
        view.fail = None
        wait_for(lambda: view.read(first.topic) == 20)
        view.fail = Unavailable("down", retry_after=0.1)
        calls = view.calls
        write(journal_settings.brokers, first.topic, {1: numbered(1, first=2_000)})
        wait_for(lambda: view.calls > calls + 1)
        low = expire(journal_settings.brokers, first, numbered(20, first=10))
        view.fail = None
        wait_for(lambda: view.stands.get(first) == 30)
        write(journal_settings.brokers, first.topic, {1: numbered(1, first=2_001)})
        wait_for(lambda: view.stands.get(Partition(first.topic, 1)) == 12)
    assert metric(client, "journal_gap_records_total", topic=first.topic) == low - 10
    counted = view.counted(first.topic)
    assert set(counted) == set(
        numbered(10) + numbered(30 - low, first=low) + numbered(10, first=1_000) + numbered(2, first=2_000)
    )
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("position", [20, None], ids=["restored", "wiped"])
def test_a_view_that_stands_elsewhere_is_read_to_from_there(
    journal_settings: JournalSettings, first: Partition, position: int | None
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(50)})
    view = MemoryView()
    with running(JournalClient(journal_settings, view)) as client:
        wait_for(lambda: view.stands.get(first) == 50)
        view.stands = {} if position is None else {first: position}
        view.failures = deque([StalePosition({first: position})])
        write(journal_settings.brokers, first.topic, {0: numbered(10, first=50)})
        wait_for(lambda: view.stands.get(first) == 60)
    again = position or 0
    assert view.keys[first.topic] == numbered(50) + numbered(60 - again, first=again)
    assert metric(client, "journal_stale_positions_total", reason="stale") == 1


def test_a_view_that_was_restored_is_noticed_when_nothing_is_written(
    journal_settings: JournalSettings, first: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal_client.client.CHECK_VIEW", 0.1)
    write(journal_settings.brokers, first.topic, {0: numbered(50)})
    view = MemoryView()
    with running(JournalClient(journal_settings, view)):
        wait_for(lambda: view.stands.get(first) == 50)
        view.stands = {first: 20}
        wait_for(lambda: view.stands.get(first) == 50)
    assert view.keys[first.topic] == numbered(50) + numbered(30, first=20)


def test_every_start_is_logged_with_who_decided(
    journal_settings: JournalSettings, first: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    write(journal_settings.brokers, first.topic, {0: numbered(10)})
    with caplog.at_level(logging.INFO, logger="journal_client"):
        run(journal_settings, MemoryView(stands={first: 4}))
    assert f"{first} starts at 4 (view)" in caplog.messages
    assert f"{first.topic}[1] starts at 0 (reset)" in caplog.messages
