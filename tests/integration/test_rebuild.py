"""``counters rebuild`` counts a counter anew while the workers go on, and switches in one step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from counting import STORE, expected, positions
from reading import numbered, running
from redis import Redis
from succession import held, registered, strata
from tasks import DERIVED, PRECISION, System, expire, people, revisions, write_keys

from counters.config import ObjectsSettings
from counters.objects.direct import DirectWriter
from counters.objects.generations import Generations
from counters.objects.reader import CountsReader
from counters.objects.spec import Count, CounterSpec
from counters.objects.store import CounterStore
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

CreateTopics = Callable[..., None]


@pytest.fixture
def system(journal_settings: JournalSettings, redis_url: str, tmp_path: Path) -> System:
    return System(journal_settings, redis_url, tmp_path)


@pytest.fixture
def counted(system: System, create_topics: CreateTopics, redis_client: Redis) -> System:
    """1,000 keys, counted by a worker."""
    create_topics("content")
    write_keys(system, "content", {0: numbered(600), 1: numbered(400, 600)})
    system.count(redis_client)
    return system


def assert_rebuilt(
    redis: Redis, keys: list[bytes], precision: int, *, counter: str = "content", generation: int = 2
) -> None:
    """The counter has one generation, which holds the keys, and nothing else is left of it."""
    spec = registered(redis, counter)
    assert (spec.precision, spec.generation, spec.successor) == (precision, generation, None)
    assert np.array_equal(held(redis, spec), expected(keys, precision))
    assert [key for key in strata(redis) if f":{counter}:" in key] == sorted(spec.keys(STORE))


@contextmanager
def all_counts(redis: Redis, system: System) -> Iterator[list[Count]]:
    """Everything that is published about ``content`` until the block ends."""
    done = threading.Event()
    seen: list[Count] = []
    reader = CountsReader(redis, STORE, system.journal.group_id, system.journal.prefix)

    def look() -> None:
        while not done.wait(0.001):
            seen.extend(count for count in reader.read() if count.name == "content")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@contextmanager
def written_all_the_while(system: System, written: list[bytes]) -> Iterator[None]:
    """Keys flow, and are noted in ``written``, until the block ends."""
    done = threading.Event()

    def flow() -> None:
        while not done.wait(0.01):
            keys = numbered(50, len(written))
            write_keys(system, "content", {len(written) // 50 % 4: keys})
            written.extend(keys)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("precision", [14, 17])
def test_beside_two_workers_and_a_writer_nothing_is_lost_and_the_count_never_falls(
    precision: int, system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    written = numbered(2_000)
    write_keys(system, "content", {n: written[500 * n : 500 * (n + 1)] for n in range(4)})
    system.count(redis_client)
    other = Redis.from_url(system.redis_url)
    with (
        other,
        running(system.worker(redis_client)),
        running(system.worker(other)),
        written_all_the_while(system, written),
        all_counts(redis_client, system) as seen,
    ):
        done = system.run("rebuild", "content", "--precision", str(precision), batch=200)
        assert done.code == 0, done.err
        wait_for(lambda: seen[-1].standard_error == CounterSpec("content", precision).standard_error)
    with running(system.worker(redis_client)):
        topic = system.topic("content")
        wait_for(lambda: positions(redis_client, system.journal.group_id)[topic] == len(written))
    assert_rebuilt(redis_client, written, precision)
    assert [count.reason for count in seen if count.suspect] == []
    errors = seen[0].standard_error + seen[-1].standard_error
    assert min(count.value or 0 for count in seen) > 2_000 * (1 - 4 * errors)


def test_what_came_of_it_is_said_and_listed(counted: System, redis_client: Redis) -> None:
    done = counted.run("rebuild", "content", "--precision", "18")
    assert done.code == 0
    assert done.out.startswith("content: 1,000 (was ")
    [row] = counted.checkpoints().list()
    assert (row.name, row.position, row.items["ok"]) == ("rebuild:content", {}, 1_000)
    assert_rebuilt(redis_client, numbered(1_000), 18)


def test_without_a_precision_it_takes_that_of_the_settings(counted: System, redis_client: Redis) -> None:
    assert counted.run("rebuild", "content").code == 0
    assert_rebuilt(redis_client, numbered(1_000), PRECISION)


def test_no_key_of_redis_is_left_behind(counted: System, redis_client: Redis) -> None:
    assert counted.run("rebuild", "content", "--precision", "16").code == 0
    before = set(redis_client.scan_iter())
    assert counted.run("rebuild", "content", "--precision", "16").code == 0
    after = {key.replace(b":content:3:", b":content:2:") for key in redis_client.scan_iter()}
    assert after == before


def test_a_derived_counter_is_rebuilt_from_the_topics_that_there_are(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("revision")  # and no release
    write_keys(system, "revision", {0: revisions(300)})
    system = system.looking_for(DERIVED)
    system.count(redis_client)
    done = system.run("rebuild", "person", "--precision", "16")
    assert done.code == 0, done.err
    assert_rebuilt(redis_client, people(300), 16, counter="person")


def test_a_derived_counter_keeps_what_comes_from_a_topic_of_its_own(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("revision", "person")
    write_keys(system, "revision", {0: revisions(30)})
    write_keys(system, "person", {0: numbered(3)})
    system = system.looking_for(DERIVED)
    system.count(redis_client)
    assert system.run("rebuild", "person").code == 0
    assert_rebuilt(redis_client, [*people(30), *numbered(3)], PRECISION, counter="person")


def test_an_adopted_flat_key_becomes_a_counter_of_its_own(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    write_keys(system, "content", {0: numbered(500)})
    legacy = System(system.journal, system.redis_url, system.folder, {"layout": "legacy", "precision": 14})
    legacy.count(redis_client)
    assert redis_client.exists("content")
    assert legacy.run("rebuild", "content", "--precision", "16").code == 0
    assert_rebuilt(redis_client, numbered(500), 16)
    assert not redis_client.exists("content")


# -- given up ------------------------------------------------------------------------------------------------


def test_abandoning_leaves_exactly_the_keys_that_were_there(counted: System, redis_client: Redis) -> None:
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    pause = {"before 4": lambda: counted.checkpoints().pause("rebuild:content")}
    assert counted.run("rebuild", "content", "--precision", "18", "--no-wait", at=pause).code == 0
    assert len(strata(redis_client)) == 2 + 16
    done = counted.run("rebuild", "content", "--abandon")
    assert (done.code, done.out) == (0, "content: the rebuild was given up\n")
    after = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    # The entry counts its changes, and claims are counted; the stamp is that of the last flush.
    assert changed == {b"{counters}:registry", b"{counters}:epoch", b"{counters}:stamps"}
    assert registered(redis_client) == CounterSpec("content", PRECISION, epoch=2)
    assert counted.run("rebuild", "content", "--abandon").out == "no rebuild:content was begun\n"


def test_a_process_that_waits_does_not_begin_an_abandoned_rebuild_again(
    counted: System, redis_client: Redis
) -> None:
    counted.checkpoints().pause("rebuild:content")
    with counted.process("rebuild", "content") as process:
        process.expect("is paused; waiting")
        assert counted.run("rebuild", "content", "--abandon").code == 0
        assert process.end().code == 2
    assert registered(redis_client).successor is None


def test_one_that_runs_cannot_be_abandoned(counted: System) -> None:
    refused = []
    abandon = {"before 4": lambda: refused.append(counted.run("rebuild", "content", "--abandon"))}
    assert counted.run("rebuild", "content", at=abandon).code == 0
    assert (refused[0].code, "rebuild:content is already running" in refused[0].err) == (2, True)


def test_a_successor_that_lost_a_key_is_begun_anew(counted: System, redis_client: Redis) -> None:
    lose = {"before 5": lambda: redis_client.delete(CounterSpec("content", 16, 2).keys(STORE)[3])}
    done = counted.run("rebuild", "content", "--precision", "16", at=lose)
    assert (done.code, "beginning anew" in done.err) == (0, True)
    assert_rebuilt(redis_client, numbered(1_000), 16)


def test_a_counter_repaired_by_a_worker_is_begun_anew(counted: System, redis_client: Redis) -> None:
    def lose() -> None:
        redis_client.delete(registered(redis_client).keys(STORE)[0])
        wait_for(lambda: registered(redis_client).successor is None)

    write_keys(counted, "content", {2: numbered(1, 5_000)})
    with running(counted.worker(redis_client)):
        done = counted.run("rebuild", "content", "--precision", "16", at={"before 5": lose})
    assert (done.code, "beginning anew" in done.err) == (0, True)
    keys = [*numbered(1_000), *numbered(1, 5_000)]
    with running(counted.worker(redis_client)):
        wait_for(lambda: np.array_equal(held(redis_client, registered(redis_client)), expected(keys, 16)))
    assert_rebuilt(redis_client, keys, 16)


def test_a_counter_that_lost_keys_is_replaced_although_no_worker_is_there_to_repair_it(
    counted: System, redis_client: Redis
) -> None:
    lose = {"before 5": lambda: redis_client.delete(CounterSpec("content", PRECISION).keys(STORE)[1])}
    done = counted.run("rebuild", "content", "--precision", "16", at=lose)
    assert done.code == 0
    assert "counter content lacks keys in Redis; nothing to compare the recount with" in done.err
    assert_rebuilt(redis_client, numbered(1_000), 16)


def test_what_workers_look_for_since_then_is_not_mixed_with_what_was_looked_for(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    """A worker with other settings starts in the middle: the same command, with its settings, ends right."""
    create_topics("revision")
    write_keys(system, "revision", {0: revisions(600)})
    system.looking_for({"person": {"revision": ["author.name"]}}).count(redis_client)
    old = system.looking_for({"person": {"revision": ["author.name"]}})
    new = system.looking_for(DERIVED)
    done = old.run("rebuild", "person", "--precision", "16", at={"before 4": lambda: new.count(redis_client)})
    assert done.code == 2
    assert "give it the same objects.derived" in done.err.splitlines()[-1]
    done = new.run("rebuild", "person", "--precision", "16")
    assert done.code == 0, done.err
    assert_rebuilt(redis_client, people(600), 16, counter="person")


# -- killed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before 5", "after 5"])
def test_a_killed_rebuild_goes_on_at_its_last_batch(
    moment: str, counted: System, redis_client: Redis
) -> None:
    command = ("rebuild", "content", "--precision", "16")
    with counted.process(*command, at={moment: "kill"}) as process:
        assert process.popen.wait(40) == -signal.SIGKILL
    assert registered(redis_client).precision == PRECISION
    assert counted.run(*command).code == 0
    row = counted.checkpoints().get("rebuild:content")
    assert row is not None
    assert row.items["ok"] == 1_000
    assert_rebuilt(redis_client, numbered(1_000), 16)


def test_one_killed_between_the_switch_and_its_record_is_not_done_again(
    counted: System, redis_client: Redis
) -> None:
    """The last batch is that which finds nothing more to read."""
    command = ("rebuild", "content", "--precision", "16")
    batches: list[str] = []
    counts = {f"after {n}": lambda n=n: batches.append(n) for n in range(1, 50)}
    assert counted.run(*command, at=counts).code == 0
    with counted.process(*command, at={f"after {len(batches)}": "kill"}) as process:
        assert process.popen.wait(40) == -signal.SIGKILL
    assert registered(redis_client).generation == 3
    before = counted.checkpoints().get("rebuild:content")
    assert before is not None
    assert before.position
    done = counted.run(*command)
    assert (done.code, done.out) == (0, "content: the switch was made before; it is recorded now\n")
    after = counted.checkpoints().get("rebuild:content")
    assert after is not None
    assert (after.position, after.items) == ({}, before.items)
    assert_rebuilt(redis_client, numbered(1_000), 16, generation=3)


# -- falls short ---------------------------------------------------------------------------------------------


def test_a_recount_that_falls_short_is_not_switched_unless_that_is_allowed(
    counted: System, redis_client: Redis
) -> None:
    """The journal does not hold everything that was counted."""
    store = CounterStore(redis_client, STORE, counted.journal.group_id)
    objects = ObjectsSettings(precision=PRECISION, derived={})
    DirectWriter(store, objects, "any").add("content", numbered(500, 50_000))
    done = counted.run("rebuild", "content", "--precision", "16")
    assert (done.code, done.out) == (2, "")
    complaint = done.err.splitlines()[-1]
    assert complaint.startswith("counters: the recount of content found 999 where 1,500 were")
    assert complaint.endswith("--allow-fall switches, --abandon gives the recount up")
    assert registered(redis_client).generation == 1
    done = counted.run("rebuild", "content", "--precision", "16", "--allow-fall")
    assert done.code == 0
    assert_rebuilt(redis_client, numbered(1_000), 16)


def test_records_that_expired_keep_a_recount_from_being_switched(
    counted: System, redis_client: Redis
) -> None:
    expire(counted, "content", 0)
    done = counted.run("rebuild", "content")
    assert (done.code, "the journal does not hold everything any more" in done.err) == (2, True)
    assert registered(redis_client).generation == 1


def test_what_fell_short_is_switched_once_the_missing_keys_are_added(
    counted: System, redis_client: Redis
) -> None:
    store = CounterStore(redis_client, STORE, counted.journal.group_id)
    direct = DirectWriter(store, ObjectsSettings(precision=PRECISION, derived={}), "any")
    direct.add("content", numbered(500, 50_000))
    assert counted.run("rebuild", "content", "--precision", "16").code == 2
    direct.add("content", numbered(500, 50_000))
    assert counted.run("rebuild", "content", "--precision", "16").code == 0
    assert_rebuilt(redis_client, [*numbered(1_000), *numbered(500, 50_000)], 16)


# -- wrong input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "does not exist"),
        (["con tent"], "is not made of letters, digits and _ . - only"),
        (["content", "--precision", "13"], "13 is not in the range 14<=x<=20"),
        (["content", "--precision", "99999999999999999999"], "is not in the range 14<=x<=20"),
        (["content", "--precision", "many"], "'many' is not a valid integer"),
        (["nothing", "--abandon"], "no counter nothing in Redis; there are: content"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], complaint: str, counted: System) -> None:
    done = counted.run("rebuild", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert complaint in done.err
    assert counted.checkpoints().list() == []


def test_a_counter_without_records_in_the_journal_is_not_begun(system: System, redis_client: Redis) -> None:
    """Nothing of a successor is left for the workers to feed."""
    CounterStore(redis_client, STORE, "any").register(CounterSpec("content", PRECISION))
    done = system.run("rebuild", "content")
    assert (done.code, f"topic {system.topic('content')} does not exist" in done.err) == (2, True)
    assert registered(redis_client).successor is None


def test_a_topic_without_a_counter_is_one_line(system: System, create_topics: CreateTopics) -> None:
    create_topics("content")
    done = system.run("rebuild", "content")
    assert (done.code, "no counter content in Redis; there are: none" in done.err) == (2, True)


def test_another_precision_is_refused_while_one_is_begun(counted: System, redis_client: Redis) -> None:
    Generations(redis_client, STORE).begin("content", 16)
    done = counted.run("rebuild", "content", "--precision", "17")
    assert done.code == 2
    assert "counter content is being rebuilt to precision 16, not to 17" in done.err.splitlines()[-1]
