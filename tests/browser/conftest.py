"""One browser for all tests, and a server for it to look at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from chromium import PROGRAM, Browser, Page
from front_page import CONTENT
from published import PREFIX, numbered, publish
from redis import Redis
from serving import publish_history, served

from counters.objects.spec import CounterSpec

BROKEN = CounterSpec("release", precision=14)
DAY = 86_400
YEARS = 3 * 365


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; it has to be there in CI."""
    if PROGRAM is None and os.environ.get("CI") != "true":
        pytest.skip("needs chromium on PATH")
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Page:
    """A new tab."""
    page = browser.page()
    page.resize(1280)
    return page


@pytest.fixture
def address(redis_client: Redis, redis_url: str) -> Iterator[str]:
    """A server over two counters, one of them damaged, and three years of history."""
    publish(redis_client, CONTENT, numbered(20_000), messages=123_456, stamp=int(time.time() * 1000))
    publish(redis_client, BROKEN, [b"a"])
    redis_client.set(BROKEN.keys(PREFIX)[0], "foreign")
    begin = int(time.time()) - YEARS * DAY
    publish_history(redis_client, content=[(begin + n * DAY, 10.0 * n) for n in range(YEARS)], release=[])
    with served(redis_url) as client:
        yield f"{str(client.base_url).rstrip('/')}/"
