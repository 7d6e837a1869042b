"""The stream: an event per change, one read of the store for everybody, and an end in time."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from published import GROUP, PREFIX, TOPICS, numbered, publish
from redis import Redis
from serving import serve, served

from counters.api.latest import LatestCounts
from counters.api.prepared import PreparedCounts
from counters.api.stream import Feed
from counters.embedded import EmbeddedRedis
from counters.objects.reader import CountsReader
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for

CONTENT = CounterSpec("content", precision=14)
URL = "/api/v1/stream"


class Stream:
    """What one client has heard."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()

    def next(self) -> dict[str, str]:
        """The fields of the next event; comments are under ``""``."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return fields
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        raise EOFError

    def state(self) -> dict[str, Any]:
        """What the next event about counts says."""
        while (event := self.next()).get("event") != "counts":
            pass
        said: dict[str, Any] = json.loads(event["data"])
        return said

    def value(self) -> int:
        """The number of content in the next event about counts."""
        return int(self.state()["counts"]["content"]["value"])


@contextmanager
def streaming(client: httpx.Client, last_id: str = "") -> Iterator[Stream]:
    headers = {"last-event-id": last_id} if last_id else {}
    with client.stream("GET", URL, headers=headers) as answer:
        yield Stream(answer)


def counts(client: httpx.Client) -> dict[str, Any]:
    """What who does not follow is told."""
    said: dict[str, Any] = client.get("/api/v1/counts").json()
    return said


def after(moment: str, seconds: float) -> str:
    """The moment so many seconds later, as the API writes it."""
    return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CONTENT, numbered(10), messages=10, stamp=1)
    with served(redis_url) as client:
        yield client


def test_the_state_comes_first_with_an_id_and_when_to_come_back(client: httpx.Client) -> None:
    with streaming(client) as stream:
        assert stream.next() == {"retry": "2000"}
        event = stream.next()
    assert (event["event"], bool(event["id"])) == ("counts", True)
    assert json.loads(event["data"])["counts"].keys() == {"content"}


def test_proxies_are_told_to_pass_events_on_at_once(client: httpx.Client) -> None:
    with streaming(client) as stream:
        headers = stream.answer.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-store")
    assert headers["access-control-allow-origin"] == "*"


def test_every_change_is_an_event(client: httpx.Client, redis_client: Redis) -> None:
    with streaming(client) as stream:
        assert stream.value() == 10
        for more in (11, 12):
            publish(redis_client, CONTENT, numbered(more), messages=more, stamp=more)
            # value, messages and stamp are written one after the other, and may come one after the other
            assert wait_for(lambda wanted=more: stream.value() == wanted)


def test_a_read_without_a_change_is_no_event(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, CONTENT, numbered(10))
    latest = LatestCounts(CountsReader(redis_client, PREFIX, GROUP, TOPICS), 0.2)

    async def heard() -> list[bytes]:
        feed = Feed(latest, PreparedCounts(latest), heartbeat=0.5)
        running = asyncio.create_task(feed.run())
        try:
            return [await anext(messages) for messages in [feed.follow("")] for _ in range(3)]
        finally:
            running.cancel()

    with latest:
        _, first, second = asyncio.run(heard())
    assert b"event: counts\n" in first
    assert second.startswith(b": heartbeat\nevent: unchanged\n")
    before, now = (json.loads(message.partition(b"data: ")[2]) for message in (first, second))
    assert (now["stale"], now["age_seconds"]) == (False, 0)
    assert now["as_of"] > before["as_of"]


def test_who_comes_late_is_told_the_moment_of_the_last_read_and_not_of_the_last_change(
    client: httpx.Client,
) -> None:
    first = counts(client)["as_of"]
    late = after(first, seconds=3)
    wait_for(lambda: counts(client)["as_of"] >= late)
    with streaming(client) as stream:
        told = stream.state()
    assert told["as_of"] >= late
    assert told["age_seconds"] == 0


def test_who_comes_late_to_a_store_that_is_down_is_told_how_old_the_counts_are(
    own_redis: Callable[..., EmbeddedRedis],
) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        publish(redis, CONTENT, numbered(10))
    with served(server.url) as client:
        server.kill()
        wait_for(lambda: counts(client)["age_seconds"] >= 3)
        with streaming(client) as stream:
            told = stream.state()
    assert (told["stale"], told["age_seconds"] >= 3) == (True, True)


def test_head_is_answered_without_the_stream(client: httpx.Client) -> None:
    answer = client.head(URL)
    assert answer.headers["content-type"].startswith("text/event-stream")
    # on the same connection, which an unending answer would hold
    assert client.get("/healthz").status_code == 200


def test_who_comes_back_is_not_told_again_what_it_has_seen(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, CONTENT, numbered(10))
    with served(redis_url, interval=60) as client:
        with streaming(client) as stream:
            stream.next()
            seen = stream.next()["id"]
        client.timeout = httpx.Timeout(5, read=0.3)
        with streaming(client, seen) as stream:
            stream.next()
            assert stream.next()["event"] == "unchanged"
            with pytest.raises(httpx.ReadTimeout):
                stream.next()


def test_a_store_that_went_down_is_an_event_and_its_return_too(
    own_redis: Callable[..., EmbeddedRedis],
) -> None:
    server = own_redis(data=True)
    with Redis.from_url(server.url) as redis:
        publish(redis, CONTENT, numbered(10))
    with served(server.url) as client, streaming(client) as stream:
        assert stream.value() == 10
        server.kill()
        event = stream.next()
        assert json.loads(event["data"])["stale"] is True
        server.restart()
        while json.loads(stream.next()["data"])["stale"]:
            pass


def test_a_client_that_does_not_read_delays_nobody(client: httpx.Client, redis_client: Redis) -> None:
    address = (client.base_url.host, client.base_url.port)
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        lazy.connect(address)
        lazy.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: test\r\n\r\n")
        big = "x" * 100_000  # one event is more than all buffers on the way hold
        redis_client.hset(f"{{{PREFIX}}}:registry", big, "{}")
        with streaming(client) as stream:
            for more in range(11, 16):
                publish(redis_client, CONTENT, numbered(more))
                wait_for(lambda wanted=more: stream.value() == wanted, timeout=5)


def commands(redis: Redis) -> int:
    statistics = redis.info("commandstats")
    return sum(one["calls"] for name, one in statistics.items() if name != "cmdstat_info")


async def follow(address: str, clients: int, seconds: float) -> int:
    """Keep ``clients`` streams open for ``seconds``; how many there were."""
    streams = await asyncio.gather(*(opened(address) for _ in range(clients)))
    await asyncio.sleep(seconds)
    for _, writer in streams:
        writer.close()
    return len(streams)


def test_two_hundred_clients_cost_the_store_no_more_than_one(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, CONTENT, numbered(10))
    cost = {}
    with served(redis_url, interval=0.1) as client:
        address = f"{client.base_url.host}:{client.base_url.port}"
        for clients in (1, 200):
            redis_client.config_resetstat()
            began = time.monotonic()
            assert asyncio.run(follow(address, clients, seconds=1.0)) == clients
            cost[clients] = commands(redis_client) / (time.monotonic() - began)
    assert cost[200] < 1.2 * cost[1]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_fifty_open_streams_are_ended_in_order_and_in_time(
    redis_client: Redis, redis_url: str, processes: str
) -> None:
    publish(redis_client, CONTENT, numbered(10))
    with serve("--processes", processes, COUNTERS_REDIS__URL=redis_url) as (process, address):
        place = address.removeprefix("http://").rstrip("/")

        async def end() -> tuple[float, list[bytes]]:
            streams = await asyncio.gather(*(opened(place) for _ in range(50)))
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            rests = await asyncio.gather(*(reader.read() for reader, _ in streams))
            await asyncio.to_thread(process.wait, 20)
            for _, writer in streams:
                writer.close()
            return time.monotonic() - began, rests

        took, rests = asyncio.run(end())
    assert process.returncode == 0
    assert took < 5
    assert all(rest.endswith(b"\r\n0\r\n\r\n") for rest in rests)  # said to be over, not cut off


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream that has told the counts."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: test\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"event: counts"), 20)
    return reader, writer
