"""The broker goes away and comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from records import Records
from redis import Redis
from servers import kafka as real
from workers import StartWorker

from journal_client.config import JournalSettings
from journal_client.embedded import EmbeddedKafka
from journal_client.writer import JournalWriter


@pytest.fixture
def frozen_kafka() -> Iterator[EmbeddedKafka]:
    """A broker of this test's own, which loses its data when killed, but may be frozen."""
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture
def real_kafka() -> Iterator[real.RealKafka]:
    """A broker of this test's own that comes back with its data."""
    if not real.LIB.exists() and not os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("killing a broker that keeps its data needs a real one: make test-real")
    with real.RealKafka() as kafka:
        yield kafka


@pytest.fixture
def records_on(settings: JournalSettings) -> Iterator[Callable[[str], Records]]:
    """``records_on(bootstrap_servers)``: a journal there."""
    writers: list[JournalWriter] = []

    def write_to(servers: str) -> Records:
        writers.append(JournalWriter(servers, settings.prefix, kafka={"linger.ms": 1}))
        return Records(writers[-1], settings.prefix, settings.group_id)

    yield write_to
    for writer in writers:
        with closing(writer):
            pass


def test_a_broker_that_answers_again_is_read_on(
    frozen_kafka: EmbeddedKafka,
    records_on: Callable[[str], Records],
    settings: JournalSettings,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    """It was silent for longer than a session lasts, so the worker had given its partitions up."""
    records = records_on(frozen_kafka.bootstrap_servers)
    records.write(3_000)
    there = settings.model_copy(update={"brokers": frozen_kafka.bootstrap_servers})
    worker = start_worker(redis_url, journal=there, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    frozen_kafka.pause()
    worker.release()
    worker.expect("lost ")
    frozen_kafka.resume()
    records.write(1_000)
    records.expect_counted(redis_client)
    worker.stop()
    assert records.differences(redis_client) == []


def test_a_worker_ends_although_the_broker_is_silent(
    frozen_kafka: EmbeddedKafka,
    records_on: Callable[[str], Records],
    settings: JournalSettings,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    records = records_on(frozen_kafka.bootstrap_servers)
    records.write(500)
    worker = start_worker(
        redis_url, journal=settings.model_copy(update={"brokers": frozen_kafka.bootstrap_servers})
    )
    records.expect_counted(redis_client)
    frozen_kafka.pause()
    worker.stop()


def test_a_broker_that_was_killed_and_started_again_is_read_on(
    real_kafka: real.RealKafka,
    records_on: Callable[[str], Records],
    settings: JournalSettings,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    records = records_on(real_kafka.bootstrap_servers)
    records.write(3_000)
    session = {"session.timeout.ms": 6000}  # the shortest that the broker accepts
    there = settings.model_copy(
        update={"brokers": real_kafka.bootstrap_servers, "kafka": {**settings.kafka, **session}}
    )
    worker = start_worker(redis_url, journal=there, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    real_kafka.kill()
    worker.release()
    real_kafka.restart()
    records.write(1_000)
    records.expect_counted(redis_client, timeout=60)
    worker.stop()
    assert records.differences(redis_client) == []
