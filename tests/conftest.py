"""Servers for the tests: those named by ``KAFKA_BOOTSTRAP_SERVERS`` and ``REDIS_URL``, else embedded ones.

Every test process of a parallel run starts its own. The fixtures for Kafka come from
``journal_client.pytest_plugin``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from counters.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from databases import Postgresql

    from tests.servers.kafka import RealKafka

TEST_DB = 9
"""Database that tests use, and empty, on a server that was given; parallel processes use the next ones."""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that is run inside a test sets up logging for its process, which is that of the next test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """URL of a Redis database that tests may empty."""
    given = os.environ.get("REDIS_URL")
    if given:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        base, _, query = given.partition("?")
        scheme, _, rest = base.partition("://")
        host = rest.partition("/")[0]
        yield f"{scheme}://{host}/{TEST_DB + int(worker) % 6}" + (f"?{query}" if query else "")
        return
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of an empty Redis database."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushdb()
    return redis_server


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client, in bytes mode, of an empty Redis database."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Callable[..., EmbeddedRedis]]:
    """``own_redis()`` starts a server that the test may kill, freeze and fill.

    ``own_redis(data=True)`` keeps its data over a restart, in ``data_dir`` below ``tmp_path``. Other settings
    are the server's: ``own_redis(requirepass="secret")``.
    """
    with ExitStack() as servers:
        started = 0

        def start(*, data: bool = False, **options: str) -> EmbeddedRedis:
            nonlocal started
            started += 1
            folder = tmp_path / f"redis-{started}" if data else None
            settings = {name.replace("_", "-"): value for name, value in options.items()}
            return servers.enter_context(EmbeddedRedis(folder, options=settings))

        yield start


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Postgresql]:
    """A PostgreSQL that tests may empty, freeze and start again."""
    from databases import Postgresql, require_postgresql

    with Postgresql(require_postgresql()) as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql_server: Postgresql) -> str:
    """URL of an empty PostgreSQL database."""
    postgresql_server.empty()
    return postgresql_server.url


@pytest.fixture
def own_kafka() -> Iterator[RealKafka]:
    """An Apache Kafka that the test may kill, freeze and start again with its data."""
    if not os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        pytest.skip("an embedded broker cannot come back with its data: make test-real")
    from tests.servers.kafka import RealKafka

    with RealKafka() as kafka:
        yield kafka
