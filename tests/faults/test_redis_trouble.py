"""Redis answers late, refuses, or holds what is not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from records import Records, spec_of
from redis import Redis
from workers import StartWorker

from counters.embedded import EmbeddedRedis
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

OwnRedis = Callable[..., EmbeddedRedis]
REFUSED = "the store takes no batches"


@pytest.fixture
def server(own_redis: OwnRedis) -> EmbeddedRedis:
    """A Redis of this test's own."""
    return own_redis(data=True, appendonly="no")


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url, socket_timeout=20) as client:
        yield client


def test_a_redis_that_answers_after_five_seconds_is_waited_for(
    server: EmbeddedRedis, redis: Redis, records: Records, start_worker: StartWorker
) -> None:
    records.write(2_000)
    worker = start_worker(server.url, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    redis.execute_command("CLIENT", "PAUSE", "5000")
    worker.release()
    records.expect_counted(redis)
    assert REFUSED not in worker.log
    assert worker.stop().total("handled") == 2_000


def test_a_write_whose_answer_came_too_late_is_not_repeated(
    server: EmbeddedRedis, redis: Redis, records: Records, start_worker: StartWorker
) -> None:
    """Redis gets the batch, is silent for longer than ``redis.timeout``, and then does what it was told."""
    records.write(2_000)
    worker = start_worker(server.url, accidents={"before 3": "hold"}, redis_timeout=1.0)
    worker.expect("before 3, hold")
    server.pause()
    worker.release()
    worker.expect(REFUSED)
    server.resume()
    records.expect_counted(redis)
    books = worker.stop()
    assert books.total("handled") == 2_000
    assert records.differences(redis) == []


def refuse_by_memory(redis: Redis) -> None:
    redis.config_set("maxmemory", "1mb")


def refuse_as_replica(redis: Redis) -> None:
    redis.replicaof("127.0.0.1", "1")


def refuse_after_failed_snapshot(redis: Redis) -> None:
    """A server that cannot save what it has takes nothing more."""
    (Path(redis.config_get("dir")["dir"]) / "dump.rdb").mkdir()  # where the snapshot should go
    redis.config_set("save", "3600 1000000")
    redis.bgsave()
    wait_for(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err")


def accept_again(redis: Redis) -> None:
    redis.config_set("maxmemory", "0")
    redis.config_set("save", "")
    redis.replicaof("NO", "ONE")


@pytest.mark.parametrize("refuse", [refuse_by_memory, refuse_as_replica, refuse_after_failed_snapshot])
def test_what_redis_refuses_for_a_while_is_not_lost(
    refuse: Callable[[Redis], None],
    server: EmbeddedRedis,
    redis: Redis,
    records: Records,
    start_worker: StartWorker,
) -> None:
    records.write(2_000)
    worker = start_worker(server.url, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    counted = records.counted(redis)
    refuse(redis)
    worker.release()
    worker.expect(REFUSED)
    assert records.counted(redis) == counted
    accept_again(redis)
    records.expect_counted(redis)
    assert worker.stop().total("dropped.unavailable") == 0


def test_a_worker_told_to_end_while_redis_refuses_puts_its_batch_back(
    server: EmbeddedRedis, redis: Redis, records: Records, start_worker: StartWorker
) -> None:
    records.write(2_000)
    worker = start_worker(server.url, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    refuse_by_memory(redis)
    worker.release()
    worker.expect(REFUSED)
    assert worker.stop().total("dropped.unavailable") > 0
    accept_again(redis)
    start_worker(server.url)
    records.expect_counted(redis)


def test_members_that_come_and_go_while_redis_refuses_lose_nothing(
    protocol: JournalSettings,
    server: EmbeddedRedis,
    redis: Redis,
    records: Records,
    start_worker: StartWorker,
) -> None:
    """The batch that a member holds is put back when partitions are taken away."""
    records.write(2_000)
    worker = start_worker(server.url, journal=protocol, accidents={"before 3": "hold"})
    worker.expect("before 3, hold")
    refuse_by_memory(redis)
    worker.release()
    worker.expect(REFUSED)
    other = start_worker(server.url, journal=protocol)
    worker.expect("revoked ")
    accept_again(redis)
    records.expect_counted(redis)
    assert worker.stop().total("dropped.revoked") > 0
    other.stop()
    assert records.differences(redis) == []


def test_foreign_keys_in_the_same_redis_disturb_nothing(
    records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    redis_client.set("content", "somebody else's")
    redis_client.lpush("{counters}:hll", "somebody else's")
    redis_client.hset("{counters}:offsets:others", "topic:0", "7")
    records.write(1_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    worker.stop()
    assert redis_client.get("content") == b"somebody else's"
    assert redis_client.hgetall("{counters}:offsets:others") == {b"topic:0": b"7"}


def put_text(redis: Redis, key: str) -> None:
    redis.set(key, "somebody else's")


def put_list(redis: Redis, key: str) -> None:
    redis.delete(key)
    redis.lpush(key, "somebody else's")


def put_damaged(redis: Redis, key: str) -> None:
    redis.setrange(key, 0, b"HYLL\x07")


@pytest.mark.parametrize("put", [put_text, put_list, put_damaged])
def test_a_foreign_value_in_a_counters_key_costs_that_counter_only_until_it_is_deleted(
    put: Callable[[Redis, str], None],
    records: Records,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    records.write(1_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    stratum = spec_of(redis_client, "content").keys("counters")[0]
    put(redis_client, stratum)
    records.write(1_000)
    worker.expect("a key of counter content, generation 1, holds something else")
    wait_for(lambda: records.counted(redis_client) == 2_000)
    assert [line for line in records.differences(redis_client) if ":content:" not in line] == []
    redis_client.delete(stratum)
    records.expect_counted(redis_client)
    worker.stop()
