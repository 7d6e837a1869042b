"""A worker dies at the worst moments."""

from __future__ import annotations

import pytest
from records import Records
from redis import Redis
from workers import StartWorker


def test_an_undisturbed_worker_counts_everything(
    records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    records.write(3_000)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    assert worker.stop().total("handled") == 3_000


@pytest.mark.parametrize("moment", ["before 3", "after 3"])
def test_another_worker_finishes_what_a_killed_one_left(
    moment: str, records: Records, start_worker: StartWorker, redis_url: str, redis_client: Redis
) -> None:
    """Before its third write, or between that and the commit to Kafka."""
    records.write(3_000)
    start_worker(redis_url, accidents={moment: "kill"}).expect_death()
    assert 0 < records.counted(redis_client) < 3_000
    survivor = start_worker(redis_url)
    records.expect_counted(redis_client)
    survivor.stop()
    assert records.differences(redis_client) == []
