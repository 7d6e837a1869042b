"""``counters count`` as a process: it counts, says how it is, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np
import pytest
from counting import expected, stored
from reading import committed, numbered, write
from redis import Redis

from journal_client.batch import Partition
from journal_client.config import JournalSettings
from journal_client.embedded import EmbeddedKafka
from journal_client.pytest_plugin import wait_for


@contextmanager
def counting(settings: JournalSettings, redis_url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker on these servers, killed at the end if it still runs."""
    environment = {
        "COUNTERS_JOURNAL__BROKERS": settings.brokers,
        "COUNTERS_JOURNAL__GROUP_ID": settings.group_id,
        "COUNTERS_JOURNAL__PREFIX": settings.prefix,
        "COUNTERS_JOURNAL__SHUTDOWN_TIMEOUT": "5",
        "COUNTERS_JOURNAL__KAFKA": '{"session.timeout.ms": 6000}',
        "COUNTERS_REDIS__URL": redis_url,
        "COUNTERS_OBJECTS__PRECISION": "14",
    }
    command = [sys.executable, "-m", "counters", "count", *options]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def page(port: int) -> str:
    """The worker's metrics, empty while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_in_time_with_everything_written(
    journal_settings: JournalSettings,
    create_topics: Callable[..., None],
    redis_url: str,
    redis_client: Redis,
    number: signal.Signals,
) -> None:
    create_topics("content")
    topic = f"{journal_settings.prefix}.content"
    write(journal_settings.brokers, topic, {0: numbered(1_000)})
    port = free_port()
    with counting(journal_settings, redis_url, f"--http-port={port}") as process:
        handled = f'journal_records_handled_total{{topic="{topic}"}} 1000.0'
        wait_for(lambda: handled in page(port).splitlines(), timeout=40)
        process.send_signal(number)
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(1_000), 14))
    assert committed(journal_settings, topic) == {Partition(topic, 0): 1_000}


def test_a_bounded_worker_ends_by_itself(
    journal_settings: JournalSettings,
    create_topics: Callable[..., None],
    redis_url: str,
    redis_client: Redis,
) -> None:
    create_topics("content")
    write(journal_settings.brokers, f"{journal_settings.prefix}.content", {2: numbered(10)})
    with counting(journal_settings, redis_url, "--stop-at-end") as process:
        _, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(10), 14))


def test_a_worker_ends_in_time_although_its_broker_is_frozen(
    journal_settings: JournalSettings, redis_url: str
) -> None:
    port = free_port()
    with EmbeddedKafka() as kafka:
        settings = journal_settings.model_copy(update={"brokers": kafka.bootstrap_servers})
        topic = f"{settings.prefix}.content"
        write(settings.brokers, topic, {0: numbered(10)})
        with counting(settings, redis_url, f"--http-port={port}") as process:
            handled = f'journal_records_handled_total{{topic="{topic}"}} 10.0'
            wait_for(lambda: handled in page(port).splitlines(), timeout=40)
            kafka.pause()
            process.terminate()
            began = time.monotonic()
            process.communicate(timeout=30)
        assert time.monotonic() - began < 5 + 3
        assert process.returncode in (0, 1)
