"""Redis comes back without what it had confirmed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from records import Records, spec_of
from redis import Redis
from workers import StartWorker

from counters.embedded import EmbeddedRedis
from journal_client.pytest_plugin import wait_for

OwnRedis = Callable[..., EmbeddedRedis]


@pytest.fixture
def snapshots(own_redis: OwnRedis) -> EmbeddedRedis:
    """A Redis that keeps what it had at its last SAVE, and nothing else, when it is killed."""
    return own_redis(data=True, appendonly="no")


def test_a_redis_that_lost_its_last_writes_is_repaired_by_an_idle_worker(
    snapshots: EmbeddedRedis, records: Records, start_worker: StartWorker
) -> None:
    """No batch comes by that could be refused."""
    with Redis.from_url(snapshots.url) as redis:
        records.write(1_500)
        worker = start_worker(snapshots.url)
        records.expect_counted(redis)
        redis.save()
        records.write(1_500)
        records.expect_counted(redis)
        snapshots.kill()
        snapshots.restart()
        assert records.counted(redis) == 1_500
        records.expect_counted(redis)
        assert worker.stop().total("handled") == 4_500


def test_a_redis_that_lost_its_last_writes_is_repaired_under_load(
    snapshots: EmbeddedRedis, records: Records, start_worker: StartWorker
) -> None:
    with Redis.from_url(snapshots.url) as redis:
        records.write(1_500)
        workers = [start_worker(snapshots.url, pace=0.02) for _ in range(2)]
        records.expect_counted(redis)
        redis.save()
        with records.written_all_the_while():
            wait_for(lambda: records.counted(redis) > 2_500)
            snapshots.kill()
            snapshots.restart()
            wait_for(lambda: any("reading again from" in worker.log for worker in workers))
        records.expect_counted(redis)
        for worker in workers:
            worker.stop()
        assert records.differences(redis) == []


def test_a_redis_that_comes_back_empty_is_filled_again(
    own_redis: OwnRedis, records: Records, start_worker: StartWorker
) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        records.write(3_000)
        worker = start_worker(server.url)
        records.expect_counted(redis)
        server.kill()
        server.restart()
        records.expect_counted(redis)
        assert worker.stop().total("handled") == 6_000


def test_a_redis_emptied_by_somebody_else_is_filled_again(
    records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    records.write(3_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    redis_client.flushdb()
    records.expect_counted(redis_client)
    worker.stop()


@pytest.mark.parametrize("part", ["stratum", "counter", "derived counter", "positions", "registry"])
def test_whatever_was_evicted_comes_back(
    part: str, records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    """An idle worker notices it, and so does one that starts afterwards."""
    records.write(3_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    redis_client.delete(*keys_of(redis_client, records, part))
    records.expect_counted(redis_client)
    worker.stop()
    redis_client.delete(*keys_of(redis_client, records, part))
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    worker.stop()


def test_a_stratum_deleted_under_load_comes_back(
    records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    """Whichever of two workers notices it first, both have to read everything again."""
    records.write(1_500)
    workers = [start_worker(redis_url, pace=0.02) for _ in range(2)]
    records.expect_counted(redis_client)
    with records.written_all_the_while():
        wait_for(lambda: records.counted(redis_client) > 2_500)
        redis_client.delete(*keys_of(redis_client, records, "stratum"))
        wait_for(lambda: records.counted(redis_client) < 2_500)
    records.expect_counted(redis_client)
    for worker in workers:
        worker.stop()
    assert records.differences(redis_client) == []


def test_a_redis_that_evicts_keys_is_filled_again(
    own_redis: OwnRedis, records: Records, start_worker: StartWorker
) -> None:
    """Once it is told not to; which keys go is up to it."""
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        records.write(1_500)
        worker = start_worker(server.url)
        records.expect_counted(redis)
        redis.config_set("maxmemory-policy", "allkeys-random")
        redis.config_set("maxmemory", str(redis.info("memory")["used_memory"] - 30_000))
        records.write(1_500)
        wait_for(lambda: redis.info("stats")["evicted_keys"] > 0)
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "0")
        records.expect_counted(redis)
        worker.stop()
        assert records.differences(redis) == []


def test_a_stratum_lost_together_with_the_registry_comes_back(
    records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    """Creating the counter anew must not hide what it lost."""
    records.write(3_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    worker.stop()
    stratum = spec_of(redis_client, "revision").keys("counters")[1]
    redis_client.delete(stratum, "{counters}:registry")
    records.write(500)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    worker.stop()


def keys_of(redis: Redis, records: Records, part: str) -> list[str]:
    """The Redis keys of one part of the view."""
    content = spec_of(redis, "content").keys("counters")
    parts = {
        "stratum": content[1:2],
        "counter": content,
        "derived counter": spec_of(redis, "person").keys("counters"),
        "positions": [records.positions_key],
        "registry": ["{counters}:registry"],
    }
    return parts[part]
