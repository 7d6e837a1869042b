"""Calls a server as clients of swh-counters do, and says what their answers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
from published import GROUP, PREFIX, TOPICS
from pydantic import SecretStr
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from serving import running

from counters.api.app import create_app
from counters.api.legacy_calls import Backend
from counters.config import Access, ApiSettings, Layout, LegacyApiSettings, ObjectsSettings, Settings
from counters.history.series import Series
from counters.history.store import HistoryStore
from counters.objects.adoption import counts_reader
from counters.objects.direct import DirectWriter
from counters.objects.store import CounterStore
from journal_client.config import JournalSettings

MSGPACK, JSON = "application/x-msgpack", "application/json"
OPEN = ApiSettings(legacy=LegacyApiSettings(add=Access.OPEN, refresh_history=Access.OPEN))
TOKEN = "an invented token"
GUARDED = ApiSettings(
    token=SecretStr(TOKEN), legacy=LegacyApiSettings(add=Access.TOKEN, refresh_history=Access.TOKEN)
)
HISTORY = {
    "origin": Series.of([(1_600_000_000, 5.0)]),
    "content": Series.of([(1_600_000_000, 10.0), (1_600_043_200, 11.5)]),
    "person": Series.of([(1_600_000_000, 1.0)]),
}


@contextmanager
def serving(
    url: str,
    api: ApiSettings = OPEN,
    *,
    layout: Layout = Layout.NATIVE,
    refresh: Callable[[], str | None] | None = None,
    interval: float = 0.05,
) -> Iterator[httpx.Client]:
    """A client of a server on the Redis at ``url``."""
    settings = Settings(
        journal=JournalSettings(prefix=TOPICS, group_id=GROUP),
        objects=ObjectsSettings(layout=layout, precision=14 if layout is Layout.LEGACY else 16),
        api=api,
    )
    with Redis.from_url(url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as redis:
        writer = DirectWriter(CounterStore(redis, PREFIX, GROUP), settings.objects, TOPICS)
        backend = Backend(writer, HistoryStore(redis, PREFIX), refresh)
        app = create_app(settings, counts_reader(redis, settings), interval=interval, backend=backend)
        with running(app) as address, httpx.Client(base_url=address, timeout=10) as client:
            yield client


def publish_history(redis: Redis, series: Mapping[str, Series] = HISTORY) -> None:
    """Replace the history that all servers share."""
    store = HistoryStore(redis, PREFIX)
    with store.claim() as claim:
        assert store.write("default", claim, series, 3600)


def post(client: httpx.Client, path: str, **arguments: object) -> httpx.Response:
    """A call as the old client makes it."""
    headers = {"content-type": MSGPACK, "accept": MSGPACK}
    return client.post(path, content=msgspec.msgpack.encode(arguments), headers=headers)


def call(client: httpx.Client, path: str, **arguments: object) -> Any:
    """The value that a call answers with."""
    answer = post(client, path, **arguments)
    assert (answer.status_code, answer.headers["content-type"]) == (200, MSGPACK), answer.content
    return msgspec.msgpack.decode(answer.content)


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and type of an error, after checking what must hold for every one of them."""
    assert answer.headers["content-type"] == MSGPACK
    assert "transfer-encoding" not in answer.headers
    body = msgspec.msgpack.decode(answer.content)
    assert set(body) == {"type", "module", "args", "message", "traceback"}
    assert (body["module"], body["args"], body["traceback"]) == ("builtins", [body["message"]], [])
    return answer.status_code, body["type"]
