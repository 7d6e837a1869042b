"""Without Prometheus the server's own samples are the history."""

from __future__ import annotations

import time

import pytest
from histories import points
from published import PREFIX
from redis import Redis

from counters.config import HistorySettings
from counters.errors import StoreUnavailable
from counters.history.refresh import Background, Refresher, Result
from counters.history.samples import Sampler, SampleSource
from counters.history.store import HistoryStore
from journal_client.pytest_plugin import wait_for


@pytest.fixture
def store(redis_client: Redis) -> HistoryStore:
    return HistoryStore(redis_client, PREFIX)


def sampler(client: Redis, counts: dict[str, float], every: float = 60) -> Sampler:
    return Sampler(client, PREFIX, lambda: counts, every)


def from_samples(client: Redis, **settings: object) -> Refresher:
    given = HistorySettings.model_validate(settings)
    return Refresher(HistoryStore(client, PREFIX), SampleSource(client, PREFIX), given)


def test_samples_become_the_history(store: HistoryStore, redis_client: Redis) -> None:
    assert sampler(redis_client, {"content": 12, "origin": 3}).sample()
    assert from_samples(redis_client).refresh().result is Result.REFRESHED
    [(at, value)] = points(store)["content"]
    assert (abs(at - time.time()) < 60, value, points(store)["origin"][0][1]) == (True, 12.0, 3.0)


def test_replicas_write_one_sample_per_interval(redis_client: Redis) -> None:
    samplers = [sampler(redis_client, {"content": n}) for n in range(3)]
    assert [one.sample() for one in samplers] == [True, False, False]
    assert redis_client.zcard("{counters}:series:content") == 1


def test_what_is_no_number_is_not_sampled(redis_client: Redis) -> None:
    assert not sampler(redis_client, {"content": float("nan")}).sample()
    assert not sampler(redis_client, {}).sample()
    assert not redis_client.keys("*")


def test_before_the_first_sample_nothing_is_published(store: HistoryStore, redis_client: Redis) -> None:
    assert from_samples(redis_client).refresh().result is Result.EMPTY
    assert store.load() is None


def test_old_samples_are_thinned_in_redis_and_history(store: HistoryStore, redis_client: Redis) -> None:
    start = (int(time.time()) - 10 * 86_400) // 3600 * 3600
    dense = {f"{start + n * 60}:{n}": start + n * 60 for n in range(120)}
    redis_client.sadd("{counters}:sampled", "content")
    redis_client.zadd("{counters}:series:content", dense)
    from_samples(redis_client).refresh()
    assert points(store)["content"] == [(start + 59 * 60, 59.0), (start + 119 * 60, 119.0)]
    assert redis_client.zcard("{counters}:series:content") == 2


def test_samples_that_are_lost_stay_in_the_history(store: HistoryStore, redis_client: Redis) -> None:
    sampler(redis_client, {"content": 12}).sample()
    from_samples(redis_client).refresh()
    before = points(store)
    redis_client.delete("{counters}:series:content")
    assert from_samples(redis_client).refresh().result is Result.REFRESHED
    assert points(store) == before


def test_a_foreign_key_costs_the_samples_of_its_counter_only(
    store: HistoryStore, redis_client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    sampler(redis_client, {"content": 12, "origin": 3}).sample()
    redis_client.set("{counters}:series:content", "foreign")
    redis_client.delete("{counters}:claim:samples")
    assert sampler(redis_client, {"content": 13, "origin": 4}).sample()
    from_samples(redis_client).refresh()
    assert list(points(store)) == ["origin"]
    assert "{counters}:series:content holds no samples" in caplog.text


def test_sampling_goes_on_after_a_failure(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    reads = 0

    def counts() -> dict[str, float]:
        nonlocal reads
        reads += 1
        if reads < 3:
            raise StoreUnavailable("down")
        return {"content": 1.0}

    with Background(Sampler(redis_client, PREFIX, counts, 0.01)):
        wait_for(lambda: redis_client.exists("{counters}:series:content"))
    assert caplog.text.count("no sample of the counts: down") == 1
