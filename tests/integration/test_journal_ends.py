"""When reading ends: at the end of what there is, after so many records, or when it cannot begin."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from reading import MemoryView, metric, numbered, run, running, write

from journal_client.batch import Partition
from journal_client.client import JournalClient
from journal_client.config import JournalSettings, QuarantineSettings
from journal_client.errors import BrokerUnreachable, FatalError
from journal_client.pytest_plugin import wait_for

Create = Callable[..., None]


def test_everything_of_several_topics_and_partitions_is_read_to_the_end(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content", "revision", "empty")
    for object_type in ("content", "revision"):
        records = {n: numbered(100 + n, first=1_000 * n) for n in range(4)}
        write(journal_settings.brokers, f"{journal_prefix}.{object_type}", records)
    view = MemoryView()
    run(journal_settings, view)
    expected = {key for n in range(4) for key in numbered(100 + n, first=1_000 * n)}
    for object_type in ("content", "revision"):
        counted = view.counted(f"{journal_prefix}.{object_type}")
        assert set(counted) == expected
        assert set(counted.values()) == {1}


def test_what_is_written_after_the_start_is_not_waited_for(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    write(journal_settings.brokers, topic, {0: numbered(10)})

    class Echo(MemoryView):
        """Each record handled makes another one be written."""

        def handle(self, batch):  # type: ignore[no-untyped-def]
            super().handle(batch)
            write(journal_settings.brokers, topic, {0: numbered(1, first=self.batches)})

    run(journal_settings, Echo())


def test_topics_without_records_are_at_their_end(
    journal_settings: JournalSettings, create_topics: Create
) -> None:
    create_topics("content")
    view = MemoryView()
    run(journal_settings, view)
    assert view.calls == 0


@pytest.mark.parametrize("object_types", [[], ["absent", "missing"]], ids=["any", "named"])
def test_a_journal_without_topics_is_at_its_end(
    journal_settings: JournalSettings, object_types: list[str]
) -> None:
    run(journal_settings, MemoryView(), object_types=object_types)


def test_a_journal_without_topics_is_named_by_its_prefix(
    journal_settings: JournalSettings, caplog: pytest.LogCaptureFixture
) -> None:
    run(journal_settings, MemoryView())
    warnings = [record.getMessage() for record in caplog.records if record.name == "journal_client.reports"]
    assert warnings == [f"no topic below {journal_settings.prefix} exists (yet); check journal.prefix"]


def test_a_client_runs_once(journal_settings: JournalSettings) -> None:
    client = JournalClient(journal_settings.model_copy(update={"stop_at_end": True}), MemoryView())
    client.run()
    with pytest.raises(FatalError, match="has run already"):
        client.run()


def test_a_standby_without_partitions_is_at_its_end(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    settings = journal_settings.model_copy(update={"object_types": ["content"]})
    members = [JournalClient(settings, MemoryView()) for _ in range(4)]
    with running(members[0]), running(members[1]), running(members[2]), running(members[3]):
        wait_for(lambda: all(metric(m, "journal_assigned_partitions") == 1 for m in members), timeout=40)
        client = run(settings, MemoryView())
    assert metric(client, "journal_rebalances_total", kind="assigned") == 1
    assert client.ledger.polled == {}


def transaction(producer: Producer, topic: str, keys: list[bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for key in keys:
        producer.produce(topic, key=key, partition=0)
    producer.flush(10)
    if commit:
        producer.commit_transaction(10)
    else:
        producer.abort_transaction(10)


@pytest.fixture
def transactions(kafka_server: str, journal_prefix: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": kafka_server, "transactional.id": journal_prefix, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def test_the_markers_of_transactions_are_read_past(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create, transactions: Producer
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    transaction(transactions, topic, numbered(5), commit=True)
    transaction(transactions, topic, numbered(5, first=5), commit=False)
    view = MemoryView()
    run(journal_settings, view)
    assert view.stands == {Partition(topic, 0): 12}


def test_a_topic_that_ends_in_an_aborted_transaction_has_an_end(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create, transactions: Producer
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    transaction(transactions, topic, numbered(5), commit=True)
    transaction(transactions, topic, numbered(5, first=5), commit=False)
    # nothing but the aborted records is left to read, and the embedded broker hands them out
    embedded = not os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    view = MemoryView(stands={Partition(topic, 0): 6})
    run(journal_settings, view)
    assert view.stands == {Partition(topic, 0): 12}
    assert view.keys.get(topic, []) == (numbered(5, first=5) if embedded else [])


def test_a_reader_stops_after_about_so_many_records_and_goes_on_there_later(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    write(journal_settings.brokers, topic, {0: numbered(5_000)})
    view = MemoryView()
    client = JournalClient(journal_settings.model_copy(update={"stop_after": 1_500}), view)
    polled = client.run().polled[topic]
    assert 1_500 <= polled <= 2_500
    assert view.read(topic) == polled
    run(journal_settings, view)
    assert view.keys[topic] == numbered(5_000)


def test_no_broker_is_an_error_within_the_time_allowed(journal_settings: JournalSettings) -> None:
    settings = journal_settings.model_copy(update={"brokers": "127.0.0.1:1", "start_timeout": 0.5})
    began = time.monotonic()
    with pytest.raises(
        BrokerUnreachable, match=r"^no Kafka broker at 127\.0\.0\.1:1 .* 0\.5 s .*journal\.brokers$"
    ):
        JournalClient(settings, MemoryView()).run()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("quarantine", [None, "set-aside"])
def test_a_key_that_the_library_does_not_know_is_one_line(
    journal_settings: JournalSettings, quarantine: str | None
) -> None:
    settings = journal_settings.model_copy(
        update={"kafka": {"no.such.key": 1}, "quarantine": QuarantineSettings(topic=quarantine)}
    )
    with pytest.raises(FatalError, match=r'^journal\.kafka: [^\n]*"no\.such\.key"$'):
        JournalClient(settings, MemoryView()).run()


FORKING = """
import os, sys
from journal_client.client import JournalClient
from journal_client.config import JournalSettings
from journal_client.errors import FatalError
client = JournalClient(JournalSettings(brokers="127.0.0.1:1", start_timeout=0.1), None)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    client.run()
except FatalError as error:
    print(error, flush=True)
    os._exit(7)
"""


def test_a_client_made_before_a_fork_refuses_to_run_in_the_child() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 7, ended.stderr
    assert "made before a fork" in ended.stdout
