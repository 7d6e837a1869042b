"""Fixtures for whoever writes a handler of the journal; pytest loads them wherever this package is installed.

They use the broker named by ``KAFKA_BOOTSTRAP_SERVERS``, else an embedded one per test process. Topic
prefixes and groups are new for every test, so tests may share one broker and run side by side.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

# Everything else is imported where it is used: pytest loads this file at every start, whatever it tests.
if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from journal_client.config import JournalSettings
    from journal_client.writer import JournalWriter

PARTITIONS = 4
"""Partitions of a topic, on a real broker as on the embedded one."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float = 20.0, message: str = "") -> T:
    """Wait until ``condition`` returns something true, and return that.

    Raises:
        AssertionError: it did not within ``timeout`` seconds; says ``message`` and the last value.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{message or 'the condition was not met'} within {timeout:g} s (last: {value!r})"
            )
        time.sleep(0.02)
    return value


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[str]:
    """Bootstrap servers of a broker."""
    given = _given_server()
    if given:
        yield given
        return
    from journal_client.embedded import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture
def journal_prefix(kafka_server: str) -> Iterator[str]:
    """A topic prefix of this test's own. On a given broker its topics are deleted afterwards."""
    prefix = f"test.{uuid.uuid4().hex[:12]}.objects"
    yield prefix
    if _given_server():
        admin = _admin(kafka_server)
        topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(prefix)]
        if topics:
            for deleted in admin.delete_topics(topics, operation_timeout=10).values():
                deleted.exception(timeout=20)


@pytest.fixture
def journal_group() -> str:
    """A consumer group of this test's own."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def create_topics(kafka_server: str, journal_prefix: str) -> Callable[..., None]:
    """``create_topics("content", "revision")``: topics of these object types, with 4 partitions each."""

    def create(*object_types: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        names = [f"{journal_prefix}.{object_type}" for object_type in object_types]
        if _given_server():
            topics = [NewTopic(name, PARTITIONS, 1) for name in names]
            admin = _admin(kafka_server)
            for created in admin.create_topics(topics).values():
                created.result(timeout=20)
        for name in names:
            wait_for(partial(_has_partitions, kafka_server, name), message=f"topic {name} was not created")

    return create


@pytest.fixture
def journal_writer(kafka_server: str, journal_prefix: str) -> Iterator[JournalWriter]:
    """A writer below ``journal_prefix``."""
    from journal_client.writer import JournalWriter

    with closing(JournalWriter(kafka_server, journal_prefix, kafka={"linger.ms": 1})) as writer:
        yield writer


@pytest.fixture
def journal_settings(kafka_server: str, journal_prefix: str, journal_group: str) -> JournalSettings:
    """Settings of a reader of ``journal_prefix`` in ``journal_group`` that notices everything quickly."""
    from journal_client.config import BatchLimits, JournalSettings

    # The embedded broker lets a rebalance wait for the session timeout less one second;
    # a real one refuses sessions below 6 s by default.
    session: dict[str, Any] = {"session.timeout.ms": 6000 if _given_server() else 2000}
    return JournalSettings(
        brokers=kafka_server,
        group_id=journal_group,
        prefix=journal_prefix,
        batch=BatchLimits(max_seconds=0.2),
        start_timeout=15.0,
        revoke_timeout=3.0,
        shutdown_timeout=10.0,
        kafka=session
        | {
            "heartbeat.interval.ms": 250,
            "topic.metadata.refresh.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
        },
    )


def _given_server() -> str:
    return os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")


def _admin(bootstrap_servers: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def _has_partitions(bootstrap_servers: str, topic: str) -> bool:
    # The embedded broker creates a topic when it is asked about.
    metadata = _admin(bootstrap_servers).list_topics(topic, timeout=10).topics[topic]
    return len(metadata.partitions) == PARTITIONS
