"""A counter with a successor, and keys that are gone: deleted, replaced or refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from counting import STORE, Worker, batch, expected, stored, worker
from reading import numbered
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from succession import FIRST, PREFIX, REGISTRY, TOPIC, held, late, registered, strata

from counters.config import ObjectsSettings
from counters.embedded import EmbeddedRedis
from counters.objects.direct import DirectWriter
from counters.objects.generations import Generations
from counters.objects.reader import CountsReader
from counters.objects.spec import CounterSpec, Successor
from counters.objects.store import CounterStore
from journal_client.batch import Partition
from journal_client.errors import StalePosition, Unavailable


@pytest.fixture
def generations(redis_client: Redis) -> Generations:
    return Generations(redis_client, STORE)


@pytest.fixture
def counting(redis_client: Redis) -> Worker:
    """A worker that has counted ten keys with precision 14."""
    counting = worker(redis_client, "g", PREFIX, precision=14)
    counting.handle(batch(TOPIC, numbered(10), {0: 10}))
    return counting


# -- keys vanish ---------------------------------------------------------------------------------------------


def by_flush(counting: Worker) -> dict[Partition, int | None]:
    """How a worker learns of it that has a batch in hand."""
    with pytest.raises(StalePosition) as caught:
        counting.handler.handle(batch(TOPIC, [b"more"], {0: 30}))
    return caught.value.positions


def by_asking(counting: Worker) -> dict[Partition, int | None]:
    """How an idle worker learns of it."""
    return dict(counting.handler.positions([FIRST]))


NOTICED = pytest.mark.parametrize("notice", [by_flush, by_asking])
Notice = Callable[[Worker], dict[Partition, int | None]]


@NOTICED
def test_a_counter_that_lost_keys_loses_its_successor_too(
    redis_client: Redis, generations: Generations, counting: Worker, notice: Notice
) -> None:
    spec = generations.begin("content", 16)
    late(counting, [b"a"], 20)
    redis_client.delete(*spec.keys(STORE))
    assert notice(counting) == {FIRST: None}
    assert registered(redis_client).successor is None
    assert strata(redis_client) == spec.keys(STORE)
    counting.handler.handle(batch(TOPIC, numbered(30), {0: 30}))
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(30), 14))


@NOTICED
def test_a_successor_that_lost_keys_is_given_up_and_the_counter_goes_on(
    redis_client: Redis, generations: Generations, counting: Worker, notice: Notice
) -> None:
    spec = generations.begin("content", 16)
    late(counting, [b"a"], 20)
    redis_client.delete(CounterSpec("content", 16, 2).keys(STORE)[3])
    assert notice(counting) == {FIRST: 20}
    assert registered(redis_client).successor is None
    assert strata(redis_client) == spec.keys(STORE)
    counting.handler.handle(batch(TOPIC, [b"b"], {0: 21}))
    assert np.array_equal(held(redis_client, spec), expected([*numbered(10), b"a", b"b"], 14))


@NOTICED
def test_a_counter_whose_entry_was_lost_is_entered_again_without_successor(
    redis_client: Redis, generations: Generations, counting: Worker, notice: Notice
) -> None:
    spec = generations.begin("content", 16)
    late(counting, [b"a"], 20)
    redis_client.hdel(REGISTRY, "content")
    assert notice(counting) == {FIRST: 20}
    assert registered(redis_client).successor is None
    assert strata(redis_client) == spec.keys(STORE)


def test_a_worker_that_did_not_know_the_successor_repairs_nothing_before_it_does(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    redis_client.delete(*spec.keys(STORE))
    assert by_flush(counting) == {FIRST: 10}
    assert registered(redis_client) == spec
    assert by_flush(counting) == {FIRST: None}
    assert strata(redis_client) == spec.keys(STORE)


def test_a_counter_whose_paths_changed_loses_its_successor(
    redis_client: Redis, generations: Generations
) -> None:
    topic = f"{PREFIX}.revision"
    old = worker(redis_client, "g", PREFIX, precision=14, derived={"person": {"revision": ["author"]}})
    old.handler.positions([Partition(topic, 0)])
    before = strata(redis_client)
    generations.begin("person", 15)
    generations.begin("revision", 15)
    new = worker(redis_client, "g", PREFIX, precision=14, derived={"person": {"revision": ["committer"]}})
    new.handler.positions([Partition(topic, 0)])
    assert registered(redis_client, "person").successor is None
    assert registered(redis_client, "revision").successor == Successor(15, 2)
    assert len(strata(redis_client)) == len(before) + 2


def test_paths_that_change_after_a_switch_empty_the_generation_that_holds(
    redis_client: Redis, generations: Generations
) -> None:
    partition = Partition(f"{PREFIX}.revision", 0)
    derived = [{"person": {"revision": [path]}} for path in ("author", "committer")]
    old, new = (worker(redis_client, "g", PREFIX, precision=14, derived=some) for some in derived)
    old.handler.positions([partition])
    new.handler.holds_data(f"{PREFIX}.person")  # knows the counter as it was before
    switched = generations.switch(generations.begin("person", 15))
    new.handler.positions([partition])
    assert registered(redis_client, "person").generation == switched.generation
    assert not redis_client.exists(CounterSpec("person", 14).keys(STORE)[0])


def test_a_client_that_adds_to_a_lost_successor_adds_to_the_counter(
    redis_client: Redis, generations: Generations
) -> None:
    direct = DirectWriter(CounterStore(redis_client, STORE, "g"), ObjectsSettings(precision=14), PREFIX)
    direct.add("content", [b"a"])
    spec = generations.begin("content", 14)
    redis_client.delete(*CounterSpec("content", 14, 2).keys(STORE))
    direct.add("content", [b"b"])
    assert np.array_equal(held(redis_client, spec), expected([b"a", b"b"], 14))
    assert registered(redis_client).successor is None


def test_strata_left_from_a_lost_registry_are_neither_counted_nor_kept(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    for key in CounterSpec("content", 18, 2).keys(STORE):
        redis_client.pfadd(key, "left")
    spec = generations.begin("content", 15)
    assert not held(redis_client, spec.following).any()
    assert len(strata(redis_client)) == 3


# -- reading -------------------------------------------------------------------------------------------------


def test_a_successor_is_not_published_before_the_switch_and_is_no_fall_after_it(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    reader = CountsReader(redis_client, STORE, "g", PREFIX)
    spec = generations.begin("content", 16)
    late(counting, [b"a"], 20)
    [before] = reader.read()
    assert (before.value, before.standard_error, before.suspect) == (11, spec.standard_error, False)
    switched = generations.switch(spec)
    [after] = reader.read()
    assert (after.value, after.standard_error, after.suspect) == (1, switched.standard_error, False)


def test_a_switch_in_the_middle_of_a_reading_is_no_loss(
    redis_client: Redis, generations: Generations, counting: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = generations.begin("content", 16)
    late(counting, numbered(10), 20)
    run, calls = CountsReader._run, []

    def switch_between(reader: CountsReader, commands: list[tuple[object, ...]]) -> object:
        calls.append(commands)
        if len(calls) == 2:  # the registry was read, the strata were not
            generations.switch(spec)
        return run(reader, commands)

    monkeypatch.setattr(CountsReader, "_run", switch_between)
    [count] = CountsReader(redis_client, STORE, "g", PREFIX).read()
    assert (count.value, count.suspect, count.reason) == (10, False, None)


# -- when Redis does not take it -----------------------------------------------------------------------------


def test_a_full_redis_begins_nothing_and_can_be_relieved(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        worker(redis, "g", PREFIX, precision=14).handle(batch(TOPIC, [b"a"], {0: 1}))
        generations = Generations(redis, STORE)
        redis.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="maxmemory"):
            generations.begin("content", 15)
        assert registered(redis).successor is None
        redis.config_set("maxmemory", 0)
        generations.begin("content", 15)
        redis.config_set("maxmemory", 1)
        assert generations.abandon("content")
        assert strata(redis) == CounterSpec("content", 14).keys(STORE)


def test_a_redis_that_is_gone_is_tried_again_later(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as redis:
        server.kill()
        with pytest.raises(Unavailable):
            Generations(redis, STORE).begin("content", 15)
