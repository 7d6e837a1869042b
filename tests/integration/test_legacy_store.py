"""The endpoints of swh-counters while Redis is away, and on what stood in Redis before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from counting import expected, stored
from old_calls import call, error_of, post, serving
from published import GROUP, PREFIX, TOPICS, numbered, publish
from redis import Redis

from counters.config import Layout
from counters.embedded import EmbeddedRedis
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CounterSpec("content", precision=16), numbered(100))
    publish(redis_client, CounterSpec("origin", precision=14), numbered(10))
    with serving(redis_url) as client:
        yield client


# -- while Redis is away


def test_redis_down_is_503_and_false_and_passes_without_a_restart(
    own_redis: Callable[..., EmbeddedRedis],
) -> None:
    server = own_redis(data=True)
    with serving(server.url) as client:
        call(client, "/add", collection="release", keys=[b"a"])
        server.kill()
        wait_for(lambda: call(client, "/check") is False)
        for path, arguments in {
            "/count": {"collection": "release"},
            "/counts": {"collections": ["release"]},
            "/counters": {},
            "/add": {"collection": "release", "keys": [b"b"]},
        }.items():
            answer = post(client, path, **arguments)
            assert error_of(answer) == (503, "ConnectionError"), path
            assert b"127.0.0.1" not in answer.content
        assert client.get("/").status_code == 503

        server.restart()
        wait_for(lambda: call(client, "/check") is True)
        assert call(client, "/count", collection="release") == 1
        assert client.get("/").status_code == 200


def test_a_full_redis_refuses_to_add_and_answers_on(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis, serving(server.url) as client:
        call(client, "/add", collection="release", keys=[b"a"])
        redis.config_set("maxmemory", 1)
        answer = post(client, "/add", collection="release", keys=[b"b"])
        assert error_of(answer) == (503, "ConnectionError")
        assert call(client, "/count", collection="release") == 1


def test_a_counter_that_lost_its_keys_is_counted_anew_and_its_topics_are_read_again(
    client: httpx.Client, redis_client: Redis
) -> None:
    offsets = f"{{{PREFIX}}}:offsets:{GROUP}"
    redis_client.hset(offsets, mapping={f"{TOPICS}.content:0": 7, f"{TOPICS}.origin:0": 7})
    redis_client.delete(*CounterSpec("content", precision=16).keys(PREFIX))
    assert call(client, "/add", collection="content", keys=[b"a"]) is None
    assert set(redis_client.hgetall(offsets)) == {f"{TOPICS}.origin:0".encode()}
    # Below what was counted before: not told until the topics were read again.
    assert call(client, "/counts", collections=["content"]) == {}


def test_added_keys_land_in_the_registers_where_a_worker_puts_them(
    client: httpx.Client, redis_client: Redis
) -> None:
    keys = numbered(30_000)
    call(client, "/add", collection="release", keys=keys)
    assert (stored(redis_client, "release", 16) == expected(keys, 16)).all()


# -- two servers, and what stood in Redis before


def test_requests_accumulate_and_two_servers_answer_alike(redis_url: str) -> None:
    with serving(redis_url) as one, serving(redis_url) as other:
        call(one, "/add", collection="release", keys=[b"a"])
        call(other, "/add", collection="release", keys=[b"b"])
        assert call(other, "/count", collection="release") == 2
        wait_for(lambda: call(one, "/count", collection="release") == 2)


def test_the_flat_keys_of_swh_counters_are_served_as_they_are(redis_client: Redis, redis_url: str) -> None:
    redis_client.pfadd("content", *numbered(20))
    redis_client.set("session:17", "foreign")
    redis_client.rpush("revision", "foreign")
    with serving(redis_url, layout=Layout.LEGACY) as client:
        assert call(client, "/counters") == [b"content"]
        assert call(client, "/counts", collections=["content", "revision"]) == {"content": 20, "revision": 0}


def test_flat_keys_that_appear_later_are_served(redis_client: Redis, redis_url: str) -> None:
    with serving(redis_url, layout=Layout.LEGACY) as client:
        assert call(client, "/count", collection="person") == 0
        redis_client.pfadd("person", "ada", "grace")
        wait_for(lambda: call(client, "/count", collection="person") == 2)
        redis_client.flushall()
        redis_client.pfadd("person", *numbered(5))
        wait_for(lambda: post(client, "/count", collection="person").content == b"\x05")


def test_what_is_added_goes_into_the_flat_key(redis_client: Redis, redis_url: str) -> None:
    redis_client.pfadd("content", "a")
    with serving(redis_url, layout=Layout.LEGACY) as client:
        call(client, "/add", collection="content", keys=[b"b"])
        call(client, "/add", collection="snapshot", keys=[b"s"])
    assert (redis_client.pfcount("content"), redis_client.pfcount("snapshot")) == (2, 1)
    registry = redis_client.hgetall(f"{{{PREFIX}}}:registry")
    # Counts that stood there were read by the group up to its commits; a new counter's were not.
    assert [json.loads(registry[name])["adopted"] for name in (b"content", b"snapshot")] == [True, False]
