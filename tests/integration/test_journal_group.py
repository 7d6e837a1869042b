"""Readers as members of a group: topics that come later, members that come and go, what is committed."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from reading import MemoryView, committed, metric, numbered, run, running, write

from journal_client.batch import Batch, Partition
from journal_client.client import JournalClient
from journal_client.config import JournalSettings
from journal_client.errors import FencedError
from journal_client.pytest_plugin import wait_for

Create = Callable[..., None]


def open_batches(settings: JournalSettings) -> JournalSettings:
    """Batches that stay open until something else than their limits ends them."""
    limits = settings.batch.model_copy(update={"max_seconds": 60.0})
    return settings.model_copy(update={"batch": limits})


def variant(settings: JournalSettings, name: str) -> JournalSettings:
    """The settings for one of the ways in which a group can agree."""
    if name == "eager":
        return settings
    if name == "cooperative":
        kafka = settings.kafka | {"partition.assignment.strategy": "cooperative-sticky"}
        return settings.model_copy(update={"kafka": kafka})
    broker_decides = {"session.timeout.ms", "heartbeat.interval.ms"}
    kafka = {key: value for key, value in settings.kafka.items() if key not in broker_decides}
    return JournalSettings.model_validate(settings.model_dump() | {"kafka": kafka, "group_protocol": name})


@contextmanager
def ended_by(kind: type[Exception]) -> Iterator[list[Exception]]:
    """Collects the error of this kind that ends the block."""
    errors: list[Exception] = []
    try:
        yield errors
    except kind as error:
        errors.append(error)


def test_a_topic_created_later_is_read(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    view = MemoryView()
    with running(JournalClient(journal_settings, view)) as client:
        wait_for(lambda: client.health.started)
        create_topics("content")
        write(journal_settings.brokers, f"{journal_prefix}.content", {0: numbered(10)})
        wait_for(lambda: view.read(f"{journal_prefix}.content") == 10)
        create_topics("revision")
        write(journal_settings.brokers, f"{journal_prefix}.revision", {1: numbered(10)})
        wait_for(lambda: view.read(f"{journal_prefix}.revision") == 10)
    assert view.keys[f"{journal_prefix}.content"] == numbered(10)


def test_only_topics_below_the_prefix_are_read(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    below, like_it, longer = "a.b.content", "axb.content", "a.bc.content"
    create_topics(below, like_it, longer)
    for object_type in (below, like_it, longer):
        write(journal_settings.brokers, f"{journal_prefix}.{object_type}", {0: numbered(3)})
    view = MemoryView()
    run(journal_settings, view, prefix=f"{journal_prefix}.a.b")
    assert view.keys == {f"{journal_prefix}.{below}": numbered(3)}


def test_a_missing_topic_is_said_once_and_holds_nobody_up(
    journal_settings: JournalSettings,
    journal_prefix: str,
    create_topics: Create,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topics("content")
    here, absent = f"{journal_prefix}.content", f"{journal_prefix}.absent"
    write(journal_settings.brokers, here, {0: numbered(10)})
    view = MemoryView()
    settings = journal_settings.model_copy(update={"object_types": ["content", "absent"]})
    with running(JournalClient(settings, view)) as client:
        wait_for(lambda: view.read(here) == 10)
        wait_for(lambda: metric(client, "journal_topic_missing", topic=absent) == 1)
        create_topics("absent")
        write(settings.brokers, absent, {0: numbered(10)})
        wait_for(lambda: view.read(absent) == 10)
        assert metric(client, "journal_topic_missing", topic=absent) is None
    assert sum(f"topic {absent} does not exist (yet)" in line for line in caplog.messages) == 1


@pytest.mark.skipif(
    not os.environ.get("KAFKA_BOOTSTRAP_SERVERS"), reason="the embedded broker does not fence static members"
)
def test_two_members_of_one_name_are_told_so(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    settings = journal_settings.model_copy(update={"group_instance_id": "pod-0"})
    first = JournalClient(settings, MemoryView())
    with ended_by(FencedError) as ends, running(first):
        wait_for(lambda: metric(first, "journal_assigned_partitions") == 4)
        with running(JournalClient(settings, MemoryView())):
            wait_for(lambda: bool(first.stop), message="the first member was not fenced")
    assert [str(error) for error in ends] == [
        f"two members share group.instance.id=pod-0 in group {settings.group_id}; "
        "give each its own journal.group_instance_id"
    ]


@pytest.mark.parametrize("name", ["eager", "cooperative", "consumer"])
def test_members_that_come_and_go_lose_nothing_and_repeat_nothing(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create, name: str
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    # where the broker decides, members hear of it every 5 s, and of new matches of a pattern every 10 s
    patience = 60.0 if name == "consumer" else 20.0
    settings = variant(journal_settings, name)
    view = MemoryView()
    first, second = (JournalClient(settings, view) for _ in range(2))
    with running(first):
        write(settings.brokers, topic, {n: numbered(100, first=1_000 * n) for n in range(4)})
        wait_for(lambda: view.read(topic) >= 400, patience)
        with running(second):
            wait_for(lambda: metric(second, "journal_assigned_partitions") == 2, patience)
            wait_for(lambda: metric(first, "journal_assigned_partitions") == 2, patience)
            write(settings.brokers, topic, {n: numbered(100, first=1_000 * n + 100) for n in range(4)})
            wait_for(lambda: view.read(topic) >= 800, patience)
        write(settings.brokers, topic, {n: numbered(100, first=1_000 * n + 200) for n in range(4)})
        wait_for(lambda: view.read(topic) >= 1_200, patience)
    counted = view.counted(topic)
    assert set(counted) == {key for n in range(4) for key in numbered(300, first=1_000 * n)}
    assert set(counted.values()) == {1}
    assert second.ledger.handled[topic] == 200


def test_an_open_batch_is_handled_before_its_partitions_are_given_back(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    view = MemoryView()
    first, second = (JournalClient(open_batches(journal_settings), view) for _ in range(2))
    with running(first):
        wait_for(lambda: metric(first, "journal_assigned_partitions") == 4)
        write(journal_settings.brokers, topic, {n: numbered(10) for n in range(4)})
        wait_for(lambda: first.ledger.polled[topic] == 40)
        assert view.calls == 0
        with running(second):
            wait_for(lambda: view.read(topic) == 40)
    assert second.ledger.polled == {}


def test_a_failure_while_partitions_are_taken_away_ends_the_reader_and_loses_nothing(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    view = MemoryView()
    broken = MemoryView(stands=view.stands, keys=view.keys, failures=deque([RuntimeError("broken")]))
    first = JournalClient(open_batches(journal_settings), broken)
    with ended_by(RuntimeError) as ends, running(first):
        wait_for(lambda: metric(first, "journal_assigned_partitions") == 4)
        write(journal_settings.brokers, topic, {n: numbered(10, first=10 * n) for n in range(4)})
        wait_for(lambda: first.ledger.polled[topic] == 40)
        with running(JournalClient(journal_settings, view)):
            wait_for(lambda: view.read(topic) >= 40, timeout=40)
    assert [str(error) for error in ends] == ["broken"]
    assert view.counted(topic) == dict.fromkeys(numbered(40), 1)


def test_the_group_commits_what_the_view_has(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    write(journal_settings.brokers, topic, {n: numbered(10 * (n + 1)) for n in range(3)})
    view = MemoryView()
    run(journal_settings, view)
    assert (
        committed(journal_settings, topic)
        == view.stands
        == {Partition(topic, n): 10 * (n + 1) for n in range(3)}
    )


def test_nothing_is_committed_of_what_the_view_did_not_take(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    write(journal_settings.brokers, topic, {0: numbered(10)})
    view = MemoryView()
    run(journal_settings, view)
    write(journal_settings.brokers, topic, {0: numbered(10)})
    view.failures = deque([RuntimeError("broken")] * 10)
    with pytest.raises(RuntimeError, match="broken"):
        JournalClient(journal_settings, view).run()
    assert committed(journal_settings, topic) == {Partition(topic, 0): 10}


def test_nothing_is_committed_for_a_partition_of_somebody_else(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content", "foreign")
    topic, foreign = f"{journal_prefix}.content", f"{journal_prefix}.foreign"
    write(journal_settings.brokers, topic, {0: numbered(10)})
    write(journal_settings.brokers, foreign, {0: numbered(10)})

    class Careless(MemoryView):
        """Lets a batch claim a partition of a topic that is not read here."""

        def handle(self, batch: Batch) -> None:
            super().handle(batch)
            batch.next_offsets[Partition(foreign, 0)] = 5

    run(journal_settings, Careless(), object_types=["content"])
    assert committed(journal_settings, topic) == {Partition(topic, 0): 10}
    assert committed(journal_settings, foreign) == {}


def test_a_setting_of_the_library_takes_effect(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    write(journal_settings.brokers, f"{journal_prefix}.content", {0: numbered(1)})
    kafka: dict[str, Any] = journal_settings.kafka | {"debug": "generic", "enable.partition.eof": False}
    logger = logging.getLogger("journal_client.librdkafka")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        run(journal_settings, MemoryView(), kafka=kafka)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert any("initialized" in line for line in lines)
