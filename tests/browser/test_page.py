"""The page as a browser shows it once its script has run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from published import GROUP, PREFIX, TOPICS, numbered, publish
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from serving import running

from counters.api.app import create_app
from counters.config import Settings
from counters.embedded import EmbeddedRedis
from counters.objects.reader import CountsReader
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    BROWSER is None and os.environ.get("CI") != "true", reason="needs chromium on PATH"
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
    "--accept-lang=en-US",
    "--virtual-time-budget=4000",
)


@pytest.fixture
def address(redis_client: Redis) -> Iterator[str]:
    """A server over two counters, one of them damaged."""
    publish(redis_client, CounterSpec("content"), numbered(20_000), messages=123_456)
    publish(redis_client, CounterSpec("release", precision=14), [b"a"])
    redis_client.set(CounterSpec("release", precision=14).keys(PREFIX)[0], "foreign")
    with running(create_app(Settings(), CountsReader(redis_client, PREFIX, GROUP, TOPICS))) as address:
        yield address


def shown(address: str, profile: Path) -> str:
    """The document after loading."""
    assert BROWSER is not None, "chromium is missing"
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def value(redis: Redis) -> int:
    return sum(redis.pfcount(key) for key in CounterSpec("content").keys(PREFIX))


def test_the_numbers_are_written_as_the_reader_writes_them(
    address: str, redis_client: Redis, tmp_path: Path
) -> None:
    page = shown(address, tmp_path)
    number = value(redis_client)
    assert f'<data value="{number}">{number:,}</data>' in page
    assert "123,456" in page
    assert 'role="status">Live<' in page


def test_a_counter_that_cannot_be_read_says_so(address: str, tmp_path: Path) -> None:
    page = shown(address, tmp_path)
    assert 'data-counter="release" data-state="unreadable"' in page
    assert "WRONGTYPE" in page


def test_numbers_of_a_store_that_is_down_are_shown_as_stale(
    own_redis: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    server = own_redis()
    with Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as redis:
        publish(redis, CounterSpec("content"), [b"a"])
        app = create_app(Settings(), CountsReader(redis, PREFIX, GROUP, TOPICS), interval=0.1)
        with running(app) as address:
            wait_for(lambda: httpx.get(f"{address}readyz").status_code == 200)
            server.kill()
            wait_for(lambda: httpx.get(f"{address}readyz").status_code == 503)
            page = shown(address, tmp_path)
    assert 'role="status">Stale<' in page
    assert '<data value="1">1</data>' in page
