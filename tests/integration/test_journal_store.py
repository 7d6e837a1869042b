"""While the store takes nothing: the batch is kept, the group is kept, and health says why."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from reading import MemoryView, metric, numbered, running, write

from journal_client.batch import Partition
from journal_client.client import JournalClient
from journal_client.config import HttpSettings, JournalSettings
from journal_client.embedded import EmbeddedKafka
from journal_client.errors import Unavailable
from journal_client.ledger import Drop
from journal_client.pytest_plugin import wait_for

Create = Callable[..., None]


@pytest.fixture
def topic(journal_prefix: str, create_topics: Create) -> str:
    create_topics("content")
    return f"{journal_prefix}.content"


def test_a_batch_the_store_does_not_take_is_tried_again_unchanged(
    journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    view = MemoryView(failures=deque([Unavailable("down", retry_after=0.01)] * 3))
    with running(JournalClient(journal_settings, view)):
        wait_for(lambda: view.read(topic) == 10)
    assert (view.calls, view.batches) == (4, 1)


def test_an_outage_longer_than_the_poll_interval_costs_no_partition(
    journal_settings: JournalSettings, topic: str
) -> None:
    interval = journal_settings.kafka["session.timeout.ms"]
    settings = journal_settings.model_copy(
        update={"kafka": journal_settings.kafka | {"max.poll.interval.ms": interval}}
    )
    write(settings.brokers, topic, {0: numbered(10)})
    view = MemoryView()
    with running(JournalClient(settings, view)) as client:
        wait_for(lambda: view.read(topic) == 10)
        view.fail = Unavailable("down", retry_after=0.2)
        write(settings.brokers, topic, {n: numbered(10, first=1_000 * (n + 1)) for n in range(4)})
        until = time.monotonic() + 1.5 * interval / 1000
        wait_for(lambda: time.monotonic() > until)
        view.fail = None
        wait_for(lambda: view.read(topic) >= 50)
        assert metric(client, "journal_rebalances_total", kind="lost") is None
        assert metric(client, "journal_rebalances_total", kind="revoked") is None
    assert set(view.counted(topic).values()) == {1}


def test_nothing_is_fetched_while_the_store_takes_nothing(
    journal_settings: JournalSettings, topic: str
) -> None:
    view = MemoryView(fail=Unavailable("down", retry_after=0.05))
    with running(JournalClient(journal_settings, view)) as client:
        view.fail = None
        write(journal_settings.brokers, topic, {0: numbered(1)})
        wait_for(lambda: view.read(topic) == 1)
        view.fail = Unavailable("down", retry_after=0.05)
        write(journal_settings.brokers, topic, {0: numbered(1, first=1)})
        wait_for(lambda: client.health.store_problem)
        calls = view.calls
        write(journal_settings.brokers, topic, {0: numbered(5_000, first=2)})
        wait_for(lambda: view.calls > calls + 3)
        # what had been fetched before the pause took hold is all that may come, and is put back
        assert client.ledger.polled[topic] - client.ledger.dropped[topic, Drop.UNSETTLED] <= 1_002
        view.fail = None
        wait_for(lambda: view.read(topic) == 5_002)
    assert view.keys[topic] == numbered(5_002)


def test_a_reader_may_be_stopped_while_the_store_takes_nothing(
    journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    view = MemoryView(failures=deque([Unavailable("down", retry_after=0.05)] * 1_000))
    with running(JournalClient(journal_settings, view)) as client:
        wait_for(lambda: view.calls > 2)
    assert client.ledger.summary() == {topic: {"polled": 10, "handled": 0, "dropped.unavailable": 10}}
    assert view.stands == {}


def test_partitions_wait_to_be_settled_until_the_view_answers(
    journal_settings: JournalSettings, topic: str
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(10)})
    view = MemoryView(stands={Partition(topic, 0): 4}, fail=Unavailable("starting", retry_after=0.1))
    with running(JournalClient(journal_settings, view)) as client:
        wait_for(lambda: client.health.settling_problem == "starting")
        assert client.health.why_not_ready()
        view.fail = None
        wait_for(lambda: view.read(topic) == 6)
        wait_for(lambda: client.health.why_not_ready() == [])
    assert view.keys[topic] == numbered(6, first=4)


def test_health_over_http_follows_the_store(journal_settings: JournalSettings, topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def ask(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    write(journal_settings.brokers, topic, {0: numbered(10)})
    view = MemoryView()
    settings = journal_settings.model_copy(update={"http": HttpSettings(port=port)})
    with running(JournalClient(settings, view)):
        wait_for(lambda: view.read(topic) == 10)
        wait_for(lambda: ask("/readyz")[0] == 200)
        view.fail = Unavailable("Redis: out of memory", retry_after=0.1)
        write(settings.brokers, topic, {0: numbered(1)})
        wait_for(lambda: ask("/readyz")[0] == 503)
        reasons = json.loads(ask("/readyz")[1])["reasons"]
        assert reasons == ["the store takes no batches: Redis: out of memory"]
        assert ask("/livez")[0] == 200
        assert "journal_store_unavailable 1.0" in ask("/metrics")[1].splitlines()
        view.fail = None
        wait_for(lambda: ask("/readyz")[0] == 200)
        page = ask("/metrics")[1].splitlines()
        assert "journal_store_unavailable 0.0" in page
        assert f'journal_records_handled_total{{topic="{topic}"}} 11.0' in page
        wait_for(
            lambda: (
                f'journal_lag_records{{partition="0",topic="{topic}"}} 0.0' in ask("/metrics")[1].splitlines()
            )
        )
    assert ask("/livez")[0] == 0


def test_an_outage_noticed_between_batches_is_over_with_the_next_batch(
    journal_settings: JournalSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal_client.client.CHECK_VIEW", 0.1)
    write(journal_settings.brokers, topic, {0: numbered(1)})
    view = MemoryView()
    with running(JournalClient(journal_settings, view)) as client:
        wait_for(lambda: view.read(topic) == 1)
        view.fail = Unavailable("down", retry_after=60)
        wait_for(lambda: client.health.store_problem == "down")
        view.fail = None
        write(journal_settings.brokers, topic, {0: numbered(1, first=1)})
        wait_for(lambda: view.read(topic) == 2)
        wait_for(lambda: client.health.store_problem is None, timeout=5)


def test_a_broker_that_is_gone_makes_the_reader_unready_until_it_is_back(
    journal_settings: JournalSettings, journal_prefix: str
) -> None:
    topic = f"{journal_prefix}.content"
    with EmbeddedKafka() as kafka:
        kafka_settings = journal_settings.kafka | {"session.timeout.ms": 2000, "socket.timeout.ms": 1000}
        settings = journal_settings.model_copy(
            update={"brokers": kafka.bootstrap_servers, "kafka": kafka_settings}
        )
        write(settings.brokers, topic, {0: numbered(10)})
        view = MemoryView()
        with running(JournalClient(settings, view)) as client:
            wait_for(lambda: view.read(topic) == 10)
            kafka.pause()
            wait_for(lambda: "no Kafka broker answers" in client.health.why_not_ready())
            kafka.resume()
            wait_for(lambda: client.health.why_not_ready() == [])
            write(settings.brokers, topic, {0: numbered(10, first=10)})
            wait_for(lambda: len(view.counted(topic)) == 20)
