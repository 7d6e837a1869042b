"""Receipts make it harmless to do something again; on a real Redis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from redis import Redis

from counters.checkpoints.receipts import RECEIPTS_LUA, Receipts
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.errors import StoreError

PREFIX = "counters"
SECOND = timedelta(seconds=1)


@pytest.fixture
def receipts(redis_client: Redis) -> Receipts:
    return Receipts(redis_client, PREFIX)


@pytest.fixture
def checkpoints(redis_client: Redis) -> RedisCheckpoints:
    return RedisCheckpoints(redis_client, PREFIX)


@pytest.fixture
def add_five(redis_client: Redis, receipts: Receipts) -> Callable[..., int]:
    """``add_five(ids)`` adds five to a total for each, but only once."""
    script = redis_client.register_script(
        RECEIPTS_LUA
        + """
        for _, id in ipairs(receipts.missing(KEYS[1], ARGV)) do
          redis.call('INCRBY', KEYS[2], 5)
          receipts.write(KEYS[1], id)
        end
        return tonumber(redis.call('GET', KEYS[2]) or 0)
        """
    )
    return lambda *ids: int(script(keys=[receipts.key, "{counters}:total"], args=ids))


def written(redis: Redis, at: datetime, *ids: str) -> None:
    """Receipts from another time."""
    redis.zadd("{counters}:receipts", dict.fromkeys(ids, int(at.timestamp() * 1_000_000)))


def test_a_retry_adds_nothing_as_long_as_its_receipt_is_there(
    redis_client: Redis, add_five: Callable[..., int], receipts: Receipts
) -> None:
    assert add_five("t:0:7") == 5
    assert add_five("t:0:7") == 5
    redis_client.zrem(receipts.key, "t:0:7")
    assert add_five("t:0:7") == 10


def test_what_is_twice_in_one_batch_is_done_once(add_five: Callable[..., int]) -> None:
    assert add_five("t:0:7", "t:0:8", "t:0:7") == 10


def test_what_was_dropped_is_never_done(add_five: Callable[..., int], receipts: Receipts) -> None:
    assert receipts.drop(["t:0:7", "t:0:7", "t:0:8"]) == 2
    assert receipts.drop(["t:0:7"]) == 0
    assert add_five("t:0:7") == 0


def test_a_receipt_keeps_the_time_of_its_effect(
    add_five: Callable[..., int], receipts: Receipts, checkpoints: RedisCheckpoints
) -> None:
    before = checkpoints.now()
    add_five("t:0:7")
    first = receipts.oldest()
    assert first is not None
    assert before <= first <= checkpoints.now()
    receipts.drop(["t:0:7"])
    assert receipts.oldest() == first


def test_receipts_can_be_asked_for_by_the_thousand(receipts: Receipts) -> None:
    ids = [f"t:0:{n}" for n in range(2_500)]
    assert receipts.oldest() is None
    receipts.drop(ids[::2])
    assert receipts.known(ids) == set(ids[::2])
    assert receipts.known([]) == set()
    assert receipts.count() == 1_250


def test_only_the_oldest_receipts_are_deleted_and_no_more_than_asked_for(
    redis_client: Redis, receipts: Receipts, checkpoints: RedisCheckpoints
) -> None:
    cutoff = checkpoints.now().replace(microsecond=0)
    written(redis_client, cutoff - 2 * SECOND, "a")
    written(redis_client, cutoff - SECOND, "b")
    written(redis_client, cutoff, "c")
    assert receipts.count_before(cutoff) == 2
    assert receipts.delete_before(cutoff, 1) == 1
    assert receipts.known("abc") == {"b", "c"}
    assert receipts.delete_before(cutoff, 9) == 1
    assert receipts.delete_before(cutoff, 9) == 0
    assert receipts.known("abc") == {"c"}


def test_a_foreign_key_fails_before_any_effect(
    redis_client: Redis, add_five: Callable[..., int], receipts: Receipts
) -> None:
    redis_client.set(receipts.key, "something else")
    with pytest.raises(Exception, match="WRONGTYPE"):
        add_five("t:0:7")
    assert redis_client.get("{counters}:total") is None
    with pytest.raises(StoreError, match="holds something else"):
        receipts.drop(["t:0:7"])
