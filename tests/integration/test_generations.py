"""A counter gets a successor while workers count: what is fed when, and what is left of which."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest
from counting import STORE, Worker, batch, expected, positions, stored, worker
from reading import numbered
from redis import Redis
from succession import FIRST, PREFIX, TOPIC, held, late, registered, strata

from counters.config import Layout, ObjectsSettings
from counters.errors import InputError, StoreError
from counters.objects.direct import DirectWriter
from counters.objects.generations import Generations
from counters.objects.server import EMPTY
from counters.objects.spec import CounterSpec, Successor
from counters.objects.store import Addition, CounterStore, Flush, Stale
from journal_client.errors import StalePosition


@pytest.fixture
def generations(redis_client: Redis) -> Generations:
    return Generations(redis_client, STORE)


@pytest.fixture
def counting(redis_client: Redis) -> Worker:
    """A worker that has counted ten keys with precision 14."""
    counting = worker(redis_client, "g", PREFIX, precision=14)
    counting.handle(batch(TOPIC, numbered(10), {0: 10}))
    return counting


# -- two generations are fed ---------------------------------------------------------------------------------


def test_keys_from_before_are_in_the_old_generation_only_and_later_ones_in_both(
    redis_client: Redis, generations: Generations
) -> None:
    one, other = (worker(redis_client, "g", PREFIX, precision=15) for _ in range(2))
    one.handle(batch(TOPIC, numbered(100), {0: 100}))
    other.handle(batch(TOPIC, numbered(100, first=100), {1: 100}))
    spec = generations.begin("content", 16)
    assert not held(redis_client, spec.following).any()
    late(one, numbered(100, first=200), 200)
    with pytest.raises(StalePosition):
        other.handler.handle(batch(TOPIC, numbered(100, first=300), {1: 200}))
    other.handler.handle(batch(TOPIC, numbered(100, first=300), {1: 200}))
    assert np.array_equal(held(redis_client, spec), expected(numbered(400), 15))
    assert np.array_equal(held(redis_client, spec.following), expected(numbered(200, first=200), 16))


def test_a_key_that_the_old_generation_has_long_had_is_sent_to_its_successor(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 14)
    late(counting, numbered(10), 20)
    assert np.array_equal(held(redis_client, spec.following), expected(numbered(10), 14))


def test_records_are_counted_once_however_many_generations_they_go_into(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    generations.begin("content", 15)
    late(counting, numbered(10, first=10), 20)
    assert positions(redis_client, "g") == {TOPIC: 20, f"{TOPIC}:0": 20}
    assert set(redis_client.hgetall(f"{{{STORE}}}:stamps")) == {b"content"}


def test_a_derived_counter_feeds_its_successor_from_every_topic(
    redis_client: Redis, generations: Generations
) -> None:
    topic = f"{PREFIX}.revision"
    view = worker(redis_client, "g", PREFIX, precision=14, derived={"person": {"revision": ["author"]}})
    decode = view.handler.decoder(topic)
    assert decode is not None

    def revision(author: bytes, end: int) -> None:
        some = batch(topic, [b"id"], {0: end})
        some.values[topic] = [decode(msgspec.msgpack.encode({"author": author}))]
        view.handle(some)

    revision(b"Ada", 1)
    spec = generations.begin("person", 14)
    with pytest.raises(StalePosition):
        revision(b"Eve", 2)
    revision(b"Eve", 2)
    assert np.array_equal(held(redis_client, spec), expected([b"Ada", b"Eve"], 14))
    assert np.array_equal(held(redis_client, spec.following), expected([b"Eve"], 14))
    assert registered(redis_client, "revision").successor is None


@pytest.mark.parametrize("precision", [14, 16])
def test_keys_added_by_a_client_go_into_both_generations(
    redis_client: Redis, generations: Generations, precision: int
) -> None:
    store = CounterStore(redis_client, STORE, "g")
    direct = DirectWriter(store, ObjectsSettings(precision=14), PREFIX)
    direct.add("content", [b"a"])
    spec = generations.begin("content", precision)
    direct.add("content", [b"b", b"c"])
    assert np.array_equal(held(redis_client, spec), expected([b"a", b"b", b"c"], 14))
    assert np.array_equal(held(redis_client, spec.following), expected([b"b", b"c"], precision))


def test_threads_that_know_a_counter_from_different_times_lose_no_key(
    redis_client: Redis, generations: Generations
) -> None:
    store = CounterStore(redis_client, STORE, "g")
    before = store.register(CounterSpec("content", 14))
    generations.begin("content", 14)
    assert store.find("content") == registered(redis_client)
    with pytest.raises(Stale):
        store.flush(Flush({}, {}, [Addition(before, [(0, [b"a"])])]))


@pytest.mark.parametrize("broken", [0, 1])
def test_what_is_no_hyperloglog_costs_its_own_generation_until_it_is_replaced(
    redis_client: Redis,
    generations: Generations,
    counting: Worker,
    caplog: pytest.LogCaptureFixture,
    broken: int,
) -> None:
    both = generations.begin("content", 14).generations
    late(counting, [b"a"], 11)
    whole = held(redis_client, both[1 - broken])
    [key] = both[broken].keys(STORE)
    redis_client.set(key, "foreign")
    counting.handler.handle(batch(TOPIC, [b"b"], {0: 12}))
    assert f"content, generation {broken + 1}, holds something else" in caplog.text
    assert np.array_equal(held(redis_client, both[1 - broken]), np.maximum(whole, expected([b"b"], 14)))
    redis_client.set(key, EMPTY)
    counting.handler.handle(batch(TOPIC, [b"a", b"b"], {0: 14}))
    assert np.array_equal(held(redis_client, both[broken]), expected([b"a", b"b"], 14))


# -- begin ---------------------------------------------------------------------------------------------------


def test_a_successor_is_empty_and_whole_and_begun_once(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    assert (spec.precision, spec.generation, spec.successor) == (14, 1, Successor(15, 2))
    assert generations.begin("content", 15) == spec == registered(redis_client)
    assert strata(redis_client) == sorted([*spec.keys(STORE), *CounterSpec("content", 15, 2).keys(STORE)])


def test_clients_that_begin_at_once_yield_one_successor(redis_client: Redis, counting: Worker) -> None:
    gate, begun = threading.Barrier(4), []

    def begin() -> None:
        generations = Generations(redis_client, STORE)
        gate.wait()
        begun.append(generations.begin("content", 16))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == [registered(redis_client)] * 4
    assert begun[0].epoch == 1


def test_what_another_client_changed_since_one_looked_is_looked_at_again(
    redis_client: Redis, redis_url: str, generations: Generations, counting: Worker
) -> None:
    with Redis.from_url(redis_url) as client:
        look = client.hgetall

        def interrupted(key: str) -> object:
            seen = look(key)
            client.hgetall = look
            generations.begin("content", 16)
            generations.abandon("content")
            return seen

        client.hgetall = interrupted
        assert Generations(client, STORE).begin("content", 15) == registered(redis_client)
    assert registered(redis_client).epoch == 3


def test_a_rebuild_to_another_precision_is_refused_while_one_goes_on(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    with pytest.raises(StoreError, match=r"content is being rebuilt to precision 15, not to 16; finish or"):
        generations.begin("content", 16)
    assert registered(redis_client) == spec


def test_an_unknown_counter_is_answered_with_the_known_ones(
    generations: Generations, counting: Worker
) -> None:
    with pytest.raises(InputError, match=r"no counter contents in Redis; there are: content$"):
        generations.begin("contents", 15)
    with pytest.raises(InputError, match=r"no counter contents in Redis; there are: content$"):
        generations.abandon("contents")


@pytest.mark.parametrize("precision", [13, 21])
def test_a_precision_out_of_bounds_is_refused(
    generations: Generations, counting: Worker, precision: int
) -> None:
    with pytest.raises(InputError, match=rf"precision {precision} is not 14 to 20"):
        generations.begin("content", precision)


def test_a_successor_that_lost_keys_is_begun_anew(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    late(counting, numbered(100), 110)
    redis_client.delete(*CounterSpec("content", 15, 2).keys(STORE)[1:])
    anew = generations.begin("content", 15)
    assert anew.epoch > spec.epoch
    assert not held(redis_client, anew.following).any()
    late(counting, numbered(100), 210)  # its mirror knew them
    assert np.array_equal(held(redis_client, anew.following), expected(numbered(100), 15))


# -- switch --------------------------------------------------------------------------------------------------


def test_a_successor_takes_the_place_of_its_counter_under_a_batch_in_hand(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    late(counting, numbered(10), 20)
    switched = generations.switch(spec)
    assert switched == registered(redis_client)
    assert (switched.precision, switched.generation, switched.successor) == (15, 2, None)
    assert strata(redis_client) == switched.keys(STORE)
    late(counting, numbered(10, first=10), 30)
    assert np.array_equal(held(redis_client, switched), expected(numbered(20), 15))
    assert strata(redis_client) == switched.keys(STORE)
    assert positions(redis_client, "g") == {TOPIC: 30, f"{TOPIC}:0": 30}


def test_a_worker_that_asks_for_positions_first_takes_the_old_generation_for_no_loss(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    switched = generations.switch(generations.begin("content", 15))
    assert counting.handler.positions([FIRST]) == {FIRST: 10}
    counting.handler.handle(batch(TOPIC, [b"a"], {0: 11}))
    assert registered(redis_client) == switched
    assert strata(redis_client) == switched.keys(STORE)


def test_switching_again_changes_nothing(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    switched = generations.switch(spec)
    late(counting, [b"a"], 11)
    assert generations.switch(spec) == switched
    assert np.array_equal(held(redis_client, switched), expected([b"a"], 15))


def test_a_counter_that_changed_meanwhile_is_not_switched(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    generations.abandon("content")
    anew = generations.begin("content", 15)
    with pytest.raises(Stale):
        generations.switch(spec)
    assert registered(redis_client) == anew
    assert len(strata(redis_client)) == 3


def test_a_counter_without_successor_is_not_switched(generations: Generations, counting: Worker) -> None:
    with pytest.raises(Stale):
        generations.switch(CounterSpec("content", 14))


def test_a_successor_that_lost_keys_does_not_take_over(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    redis_client.delete(CounterSpec("content", 15, 2).keys(STORE)[1])
    with pytest.raises(Stale):
        generations.switch(spec)
    assert registered(redis_client) == spec
    assert np.array_equal(held(redis_client, spec), expected(numbered(10), 14))


def test_a_successor_that_is_no_hyperloglog_does_not_take_over(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    spec = generations.begin("content", 15)
    redis_client.set(CounterSpec("content", 15, 2).keys(STORE)[1], "foreign")
    with pytest.raises(StoreError, match=r"hll:content:2:1 is no HyperLogLog; delete it$"):
        generations.switch(spec)
    assert registered(redis_client) == spec


def test_an_adopted_flat_key_is_replaced_by_native_strata(
    redis_client: Redis, generations: Generations
) -> None:
    redis_client.pfadd("content", "before")
    old = worker(redis_client, "g", PREFIX, layout="legacy")
    old.handle(batch(TOPIC, [b"a"], {0: 1}))
    spec = generations.begin("content", 16)
    late(old, [b"b"], 2)
    assert redis_client.pfcount("content") == 3
    switched = generations.switch(spec)
    assert (switched.layout, switched.adopted) == (Layout.NATIVE, False)
    assert not redis_client.exists("content")
    late(old, [b"c"], 3)
    worker(redis_client, "g", PREFIX, layout="legacy").handle(batch(TOPIC, [b"d"], {0: 4}))
    assert np.array_equal(held(redis_client, switched), expected([b"b", b"c", b"d"], 16))
    assert not redis_client.exists("content")


# -- abandon -------------------------------------------------------------------------------------------------


def test_abandoning_leaves_exactly_the_keys_that_were_there(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    before = set(redis_client.scan_iter())
    generations.begin("content", 20)
    late(counting, [b"a"], 11)
    assert generations.abandon("content")
    assert set(redis_client.scan_iter()) == before
    assert registered(redis_client).successor is None
    assert not generations.abandon("content")
    late(counting, [b"b"], 12)
    assert np.array_equal(stored(redis_client, "content", 14), expected([*numbered(10), b"a", b"b"], 14))
    assert set(redis_client.scan_iter()) == before


def test_a_worker_that_knew_an_abandoned_successor_knows_nothing_of_the_next_one(
    redis_client: Redis, generations: Generations, counting: Worker
) -> None:
    generations.begin("content", 15)
    late(counting, [b"a"], 11)
    generations.abandon("content")
    spec = generations.begin("content", 15)
    late(counting, [b"a"], 12)
    assert np.array_equal(held(redis_client, spec.following), expected([b"a"], 15))
