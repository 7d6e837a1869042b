"""Members come, go, and rise from the dead."""

from __future__ import annotations

import pytest
from records import Records
from redis import Redis
from workers import StartWorker

from journal_client.config import JournalSettings


def test_members_join_and_leave_under_load(
    protocol: JournalSettings,
    records: Records,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    records.write(2_000)
    workers = [start_worker(redis_url, journal=protocol, pace=0.01)]
    workers[0].expect(" starts at ")
    with records.written_all_the_while():
        for _ in range(2):
            workers.append(start_worker(redis_url, journal=protocol, pace=0.01))
            workers[-1].expect(" starts at ", timeout=40)
        for worker in workers[:2]:
            assert worker.stop().total("handled") > 0
    records.expect_counted(redis_client)
    workers[2].stop()
    assert records.differences(redis_client) == []


@pytest.mark.parametrize("moment", ["before 3", "after 3"])
def test_a_frozen_worker_that_wakes_up_counts_nothing_twice(
    moment: str, records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    """Its session ran out, another worker took over, and it still has a batch to write or to commit."""
    records.write(3_000)
    zombie = start_worker(redis_url, accidents={moment: "freeze"})
    zombie.expect_frozen()
    heir = start_worker(redis_url)
    records.expect_counted(redis_client)
    zombie.wake()
    zombie.expect("lost ")
    records.write(1_000)
    records.expect_counted(redis_client)
    heir.stop()
    zombie.stop()
    assert records.differences(redis_client) == []


def test_a_worker_too_slow_for_the_group_counts_nothing_twice(
    settings: JournalSettings,
    records: Records,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    """Its threads send heartbeats, but one batch takes longer than ``max.poll.interval.ms``."""
    session = settings.kafka["session.timeout.ms"]
    hasty = settings.model_copy(update={"kafka": {**settings.kafka, "max.poll.interval.ms": session}})
    records.write(3_000)
    slow = start_worker(redis_url, journal=hasty, accidents={"before 3": "hold"})
    slow.expect("before 3, hold")
    heir = start_worker(redis_url)
    records.expect_counted(redis_client)
    slow.release()
    slow.expect("rejoining")
    records.write(1_000)
    records.expect_counted(redis_client)
    assert slow.stop().total("dropped.stale") > 0
    heir.stop()
    assert records.differences(redis_client) == []
