"""Runs applications, and ``counters serve``, on real sockets for the length of a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from published import GROUP, PREFIX, TOPICS
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.types import ASGIApp

from counters.api.app import create_app
from counters.api.legacy_calls import Backend
from counters.api.server import bind, make_server, url
from counters.cli.operations import make_operations
from counters.config import Settings
from counters.history.series import Series
from counters.history.store import HistoryStore
from counters.objects.reader import CountsReader
from journal_client.config import JournalSettings

SETTINGS = Settings(journal=JournalSettings(prefix=TOPICS, group_id=GROUP))
INTERVAL = 0.2
"""Seconds between two reads of the counts. Five of them without a read make the counts stale: a busy machine
must not."""


@contextmanager
def running(app: ASGIApp) -> Iterator[str]:
    """The address of ``app`` on a free port of 127.0.0.1."""
    with bind("127.0.0.1", 0) as listener:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url(listener)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(
    redis_url: str,
    interval: float = INTERVAL,
    *,
    settings: Settings = SETTINGS,
    refresh: Callable[[], str | None] | None = None,
) -> Iterator[httpx.Client]:
    """A client of an API over the counters and the history in Redis."""
    with Redis.from_url(redis_url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as redis:
        backend = Backend(
            history=HistoryStore(redis, PREFIX), refresh=refresh, operations=make_operations(settings, redis)
        )
        reader = CountsReader(redis, PREFIX, GROUP, TOPICS)
        app = create_app(settings, reader, interval=interval, backend=backend)
        with running(app) as address, httpx.Client(base_url=address) as client:
            yield client


@contextmanager
def serve(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``counters serve`` in a process of its own, and the address it prints."""
    with listening("serve", "--port", "0", *arguments, **environment) as started:
        yield started


@contextmanager
def listening(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``counters`` with these arguments in a process of its own, and the address it prints."""
    command = [sys.executable, "-m", "counters", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"no address in {line!r}"
            yield process, found[0]
        finally:
            process.kill()


def publish_history(redis: Redis, **series: list[tuple[int, float]]) -> None:
    """Publish a history as a refresh does: per counter pairs of Unix seconds and value."""
    store = HistoryStore(redis, PREFIX)
    with store.claim() as claim:
        assert store.write(
            "default", claim, {name: Series.of(points) for name, points in series.items()}, 3600
        )
