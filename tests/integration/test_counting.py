"""What a worker leaves in Redis is what its journal holds, whatever was there before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from counting import STORE, batch, expected, positions, stored, worker
from reading import commit, numbered, run, write
from redis import Redis

from counters.objects.sketch import read_blob
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore, Flush, Stale
from journal_client.batch import Batch, Partition
from journal_client.config import JournalSettings
from journal_client.errors import StalePosition

Create = Callable[..., None]

PREFIX = "journal.objects"
TOPIC = f"{PREFIX}.content"


@pytest.fixture
def topic(journal_prefix: str, create_topics: Create) -> str:
    create_topics("content")
    return f"{journal_prefix}.content"


def registry(redis: Redis) -> dict[str, CounterSpec]:
    entries = redis.hgetall(f"{{{STORE}}}:registry")
    return {name.decode(): msgspec.json.decode(entry, type=CounterSpec) for name, entry in entries.items()}


# -- through the whole loop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", range(14, 21))
def test_registers_are_those_of_the_keys_in_the_journal(
    journal_settings: JournalSettings, topic: str, redis_client: Redis, precision: int
) -> None:
    keys = numbered(2_000)
    write(journal_settings.brokers, topic, {n: keys[n * 400 : n * 400 + 800] for n in range(4)})
    view = worker(redis_client, journal_settings.group_id, journal_settings.prefix, precision=precision)
    run(journal_settings, view.handler)
    assert np.array_equal(stored(redis_client, "content", precision), expected(keys, precision))
    assert positions(redis_client, journal_settings.group_id) == {
        topic: 3_200,
        **{f"{topic}:{n}": 800 for n in range(4)},
    }


def test_persons_are_counted_in_revisions_and_releases(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create, redis_client: Redis
) -> None:
    create_topics("revision", "release")
    ada, eve = {"fullname": b"Ada <ada@example.org>"}, {"fullname": b"Eve <eve@example.org>"}
    bob = {"fullname": b"Bob <bob@example.org>", "name": b"Bob"}
    revisions = [
        {"author": ada, "committer": eve, "message": b"one"},
        {"author": ada, "committer": None},
        {"author": None},
        {},
    ]
    messages = [*map(msgspec.msgpack.encode, revisions), None, b"\xc1 undecodable"]
    write(
        journal_settings.brokers,
        f"{journal_prefix}.revision",
        {0: [(b"revision-%d" % n, message) for n, message in enumerate(messages)]},
    )
    release = msgspec.msgpack.encode({"author": bob})
    write(journal_settings.brokers, f"{journal_prefix}.release", {1: [(b"release", release)]})
    derived = {
        "person": {"revision": ["author.fullname", "committer.fullname"], "release": ["author.fullname"]}
    }
    view = worker(redis_client, journal_settings.group_id, journal_prefix, precision=14, derived=derived)
    run(journal_settings, view.handler)
    persons = [person["fullname"] for person in (ada, eve, bob)]
    assert np.array_equal(stored(redis_client, "person", 14), expected(persons, 14))
    usable = [b"revision-%d" % n for n in range(5)]
    assert np.array_equal(stored(redis_client, "revision", 14), expected(usable, 14))
    assert positions(redis_client, journal_settings.group_id) == {
        f"{journal_prefix}.revision": 5,
        f"{journal_prefix}.revision:0": 6,
        f"{journal_prefix}.release": 1,
        f"{journal_prefix}.release:1": 1,
    }


def test_an_adopted_redis_is_counted_on_from_where_its_group_had_committed(
    journal_settings: JournalSettings, topic: str, redis_client: Redis
) -> None:
    redis_client.pfadd("content", *numbered(60))
    write(journal_settings.brokers, topic, {0: numbered(100)})
    commit(journal_settings, {Partition(topic, 0): 60})
    view = worker(redis_client, journal_settings.group_id, journal_settings.prefix, layout="legacy")
    client = run(journal_settings, view.handler)
    assert client.ledger.polled[topic] == 40
    assert np.array_equal(read_blob(redis_client.get("content")), expected(numbered(100), 14))
    spec = registry(redis_client)["content"]
    assert (spec.precision, spec.adopted, spec.keys(STORE)) == (14, True, ["content"])


def test_an_adopted_counter_that_vanished_is_counted_from_the_beginning(
    journal_settings: JournalSettings, topic: str, redis_client: Redis
) -> None:
    redis_client.pfadd("content", *numbered(60))
    write(journal_settings.brokers, topic, {0: numbered(100)})
    commit(journal_settings, {Partition(topic, 0): 60})
    view = worker(redis_client, journal_settings.group_id, journal_settings.prefix, layout="legacy")
    run(journal_settings, view.handler)
    redis_client.delete("content")
    client = run(journal_settings, view.handler)
    assert client.ledger.polled[topic] == 100
    assert np.array_equal(read_blob(redis_client.get("content")), expected(numbered(100), 14))
    assert positions(redis_client, journal_settings.group_id)[topic] == 100


def test_an_empty_redis_in_the_legacy_layout_is_counted_from_the_beginning(
    journal_settings: JournalSettings, topic: str, redis_client: Redis
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(100)})
    commit(journal_settings, {Partition(topic, 0): 60})
    view = worker(redis_client, journal_settings.group_id, journal_settings.prefix, layout="legacy")
    run(journal_settings, view.handler)
    assert np.array_equal(read_blob(redis_client.get("content")), expected(numbered(100), 14))


def test_a_native_counter_starts_at_the_beginning_whatever_the_group_had_committed(
    journal_settings: JournalSettings, topic: str, redis_client: Redis
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(100)})
    commit(journal_settings, {Partition(topic, 0): 60})
    view = worker(redis_client, journal_settings.group_id, journal_settings.prefix, precision=14)
    run(journal_settings, view.handler)
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(100), 14))


def test_two_groups_on_one_redis_keep_their_own_positions(
    journal_settings: JournalSettings, topic: str, redis_client: Redis
) -> None:
    write(journal_settings.brokers, topic, {0: numbered(100)})
    groups = [journal_settings.group_id, f"{journal_settings.group_id}-too"]
    for group in groups:
        view = worker(redis_client, group, journal_settings.prefix, precision=14)
        run(journal_settings.model_copy(update={"group_id": group}), view.handler)
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(100), 14))
    for group in groups:
        assert positions(redis_client, group) == {topic: 100, f"{topic}:0": 100}


# -- the worker and its store --------------------------------------------------------------------------------


def test_fewer_keys_raise_a_register_the_more_are_counted(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=14)
    shares = []
    for number in range(10):
        before = counting.raised("content")
        counting.handle(batch(TOPIC, numbered(10_000, first=10_000 * number), {0: 10_000 * (number + 1)}))
        shares.append((counting.raised("content") - before) / 10_000)
    assert shares[0] > 0.5
    assert shares[-1] < 0.15
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(100_000), 14))


def test_a_worker_that_starts_over_sends_nothing_that_redis_has(redis_client: Redis) -> None:
    keys = numbered(5_000)
    worker(redis_client, "readers", PREFIX, precision=16).handle(batch(TOPIC, keys, {0: 5_000}))
    again = worker(redis_client, "others", PREFIX, precision=16)
    again.handle(batch(TOPIC, keys, {0: 5_000}))
    assert again.raised("content") == 0


def test_a_counter_keeps_its_precision_when_the_setting_changes(redis_client: Redis) -> None:
    worker(redis_client, "readers", PREFIX, precision=15).handle(batch(TOPIC, numbered(100), {0: 100}))
    later = worker(redis_client, "readers", PREFIX, precision=18)
    later.handle(batch(TOPIC, numbered(100, first=100), {0: 200}))
    later.handle(batch(f"{PREFIX}.origin", numbered(1), {0: 1}))
    assert {name: spec.precision for name, spec in registry(redis_client).items()} == {
        "content": 15,
        "origin": 18,
    }
    assert np.array_equal(stored(redis_client, "content", 15), expected(numbered(200), 15))


def test_only_what_the_journal_feeds_is_registered_and_nothing_else_is_touched(redis_client: Redis) -> None:
    redis_client.set("somebody", b"else")
    worker(redis_client, "readers", PREFIX, precision=14).handle(batch(TOPIC, numbered(1), {0: 1}))
    assert list(registry(redis_client)) == ["content"]
    assert redis_client.get("somebody") == b"else"
    assert set(redis_client.scan_iter()) == {
        b"somebody",
        b"{counters}:registry",
        b"{counters}:stamps",
        b"{counters}:offsets:readers",
        b"{counters}:definitions:readers",
        b"{counters}:hll:content:1:0",
    }


def flush(end: int, messages: int, *, partition: int = 0) -> Flush:
    return Flush({Partition(TOPIC, partition): end}, {TOPIC: messages}, [])


def test_a_batch_whose_answer_was_lost_is_counted_once(redis_client: Redis) -> None:
    first, again = (CounterStore(redis_client, STORE, "readers") for _ in range(2))
    first.flush(flush(10, 10))
    again.flush(flush(10, 10))  # expects what the first one expected: nothing
    assert positions(redis_client, "readers") == {TOPIC: 10, f"{TOPIC}:0": 10}
    again.flush(flush(15, 5))
    assert positions(redis_client, "readers") == {TOPIC: 15, f"{TOPIC}:0": 15}


def test_a_batch_of_which_a_part_was_counted_by_somebody_else_is_refused_whole(redis_client: Redis) -> None:
    first, second = (CounterStore(redis_client, STORE, "readers") for _ in range(2))
    first.flush(flush(10, 10))
    both = {Partition(TOPIC, 0): 10, Partition(TOPIC, 1): 7}
    with pytest.raises(Stale):
        second.flush(Flush(both, {TOPIC: 17}, []))
    assert positions(redis_client, "readers") == {TOPIC: 10, f"{TOPIC}:0": 10}


@pytest.mark.parametrize("end", [9, 11, 20], ids=["behind", "just ahead", "ahead"])
def test_a_worker_that_was_overtaken_writes_nothing_and_learns_where_the_view_stands(
    redis_client: Redis, end: int
) -> None:
    owner, zombie = (worker(redis_client, "readers", PREFIX, precision=14) for _ in range(2))
    zombie.handle(batch(TOPIC, numbered(5), {0: 5}))
    owner.handle(batch(TOPIC, numbered(5, first=5), {0: 10}))
    with pytest.raises(StalePosition) as caught:
        zombie.handler.handle(batch(TOPIC, numbered(50, first=100), {0: end}))
    assert caught.value.positions == {Partition(TOPIC, 0): 10}
    assert positions(redis_client, "readers") == {TOPIC: 10, f"{TOPIC}:0": 10}
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(10), 14))


def test_a_wiped_redis_is_noticed_before_anything_is_lost(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=14)
    counting.handle(batch(TOPIC, numbered(10), {0: 10}))
    redis_client.flushdb()
    with pytest.raises(StalePosition) as caught:
        counting.handler.handle(batch(TOPIC, numbered(5, first=10), {0: 15}))
    assert caught.value.positions == {Partition(TOPIC, 0): None}
    counting.handle(batch(TOPIC, numbered(15), {0: 15}))
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(15), 14))
    assert positions(redis_client, "readers") == {TOPIC: 15, f"{TOPIC}:0": 15}


def test_a_redis_restored_from_an_older_copy_gets_again_what_it_lost(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=14)
    counting.handle(batch(TOPIC, numbered(10), {0: 10}))
    copy = {key: redis_client.dump(key) for key in redis_client.scan_iter("{counters}*")}
    counting.handle(batch(TOPIC, numbered(10, first=10), {0: 20}))
    for key, value in copy.items():
        redis_client.restore(key, 0, value, replace=True)
    with pytest.raises(StalePosition) as caught:
        counting.handler.handle(batch(TOPIC, numbered(10, first=20), {0: 30}))
    assert caught.value.positions == {Partition(TOPIC, 0): 10}
    counting.handler.handle(batch(TOPIC, numbered(20, first=10), {0: 30}))
    assert np.array_equal(stored(redis_client, "content", 14), expected(numbered(30), 14))
    assert positions(redis_client, "readers") == {TOPIC: 30, f"{TOPIC}:0": 30}


def test_a_stratum_that_vanished_takes_back_the_positions_of_what_feeds_it(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=16)
    counting.handle(batch(TOPIC, numbered(1_000), {0: 1_000}))
    counting.handle(batch(f"{PREFIX}.origin", numbered(10), {0: 10}))
    redis_client.delete("{counters}:hll:content:1:2")
    with pytest.raises(StalePosition) as caught:
        counting.handler.handle(batch(TOPIC, numbered(1, first=1_000), {0: 1_001}))
    assert caught.value.positions == {Partition(TOPIC, 0): None}
    assert positions(redis_client, "readers") == {f"{PREFIX}.origin": 10, f"{PREFIX}.origin:0": 10}
    counting.handle(batch(TOPIC, numbered(1_001), {0: 1_001}))
    assert np.array_equal(stored(redis_client, "content", 16), expected(numbered(1_001), 16))


def test_a_batch_with_positions_only_is_a_step_too(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX)
    counting.handle(Batch(next_offsets={Partition(TOPIC, 3): 7}))
    assert positions(redis_client, "readers") == {f"{TOPIC}:3": 7}


def test_counters_are_stamped_by_the_clock_of_the_server(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> int:
        seconds, microseconds = redis_client.time()
        return seconds * 1_000 + microseconds // 1_000

    counting = worker(redis_client, "readers", PREFIX, precision=14)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before = now()
    counting.handle(batch(TOPIC, numbered(1), {0: 1}))
    stamp = int(redis_client.hget("{counters}:stamps", "content"))
    assert before <= stamp <= now()


def test_a_counter_is_stamped_also_when_nothing_new_came(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=14)
    counting.handle(batch(TOPIC, numbered(1), {0: 1}))
    redis_client.hset("{counters}:stamps", "content", 0)
    counting.handle(batch(TOPIC, numbered(1), {0: 2}))
    assert int(redis_client.hget("{counters}:stamps", "content")) > 0


def test_a_batch_of_many_keys_and_partitions_is_one_write(redis_client: Redis) -> None:
    counting = worker(redis_client, "readers", PREFIX, precision=18)
    keys = numbered(60_000)
    counting.handle(batch(TOPIC, keys, {n: n + 1 for n in range(5_000)}))
    assert np.array_equal(stored(redis_client, "content", 18), expected(keys, 18))
    assert len(positions(redis_client, "readers")) == 5_001


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 65_536])
def test_keys_of_any_length_count(redis_client: Redis, size: int) -> None:
    keys = [bytes([letter]) * size for letter in range(3)]
    worker(redis_client, "readers", PREFIX, precision=14).handle(batch(TOPIC, keys, {0: 3}))
    assert np.array_equal(stored(redis_client, "content", 14), expected(keys, 14))


def test_workers_that_start_at_once_agree_on_one_counter(redis_client: Redis) -> None:
    workers = [worker(redis_client, "readers", PREFIX, precision=14 + n) for n in range(4)]
    gate = threading.Barrier(len(workers))

    def start(number: int) -> None:
        gate.wait()
        workers[number].handle(batch(TOPIC, numbered(100, first=100 * number), {number: 100}))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    precision = registry(redis_client)["content"].precision
    assert np.array_equal(stored(redis_client, "content", precision), expected(numbered(400), precision))
    assert positions(redis_client, "readers")[TOPIC] == 400


@pytest.mark.parametrize("on_vanished", ["continue", "reread"])
def test_every_worker_forgets_what_it_knew_of_a_counter_that_another_repaired(
    redis_client: Redis, on_vanished: str
) -> None:
    """Its mirror says that Redis has the key; the stratum that had it is gone."""
    one, other = (worker(redis_client, "g", PREFIX, on_vanished=on_vanished) for _ in range(2))
    one.handle(batch(TOPIC, [b"a"], {0: 1}))
    other.handle(batch(TOPIC, [b"b"], {1: 1}))
    redis_client.delete(*CounterSpec("content").keys(STORE))
    with pytest.raises(StalePosition):
        one.handler.handle(batch(TOPIC, [b"c"], {0: 2}))
    later = batch(TOPIC, [b"b"], {2: 1})  # a partition that no position was taken back of
    with pytest.raises(StalePosition):
        other.handler.handle(later)
    other.handle(later)
    assert np.array_equal(stored(redis_client, "content", 18), expected([b"b"], 18))
