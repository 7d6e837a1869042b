"""Long tasks while Redis dies, comes back older than it was, or has its clock set back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from counting import STORE, expected
from reading import numbered
from redis import Redis
from succession import held, registered
from tasks import PRECISION, Ended, System, hex_dump, write_keys

from counters.config import ObjectsSettings
from counters.embedded import EmbeddedRedis
from counters.objects.direct import DirectWriter
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

KEYS = numbered(1_000)
ROWS = f"{{{STORE}}}:checkpoints"

OwnRedis = Callable[..., EmbeddedRedis]
Moments = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Job:
    """A command of at least nine batches, and what must be true once it is done."""

    system: System
    redis: Redis
    arguments: Sequence[str]
    precision: int = PRECISION
    more: Sequence[bytes] = ()

    @property
    def name(self) -> str:
        """Of its checkpoint, the only one."""
        [row] = self.system.checkpoints().list()
        return row.name

    def run(self, at: Moments) -> None:
        """Run it in this process."""
        self.check(self.system.run(*self.arguments, at=at))

    def check(self, ended: Ended) -> None:
        """It ended well, and all keys are counted."""
        assert ended.code == 0, ended.err
        if self.arguments[0] == "verify":
            assert "exact      1,000\n" in ended.out
            return
        spec = registered(self.redis)
        assert (spec.precision, spec.successor) == (self.precision, None)
        assert np.array_equal(held(self.redis, spec), expected([*KEYS, *self.more], self.precision))


@pytest.fixture(params=["a dump", "a topic", "a rebuild", "a recount"])
def job(request: pytest.FixtureRequest) -> Callable[[str], Job]:
    """``job(redis_url)`` is the same task on any Redis."""
    journal: JournalSettings = request.getfixturevalue("journal_settings")
    folder: Path = request.getfixturevalue("tmp_path")
    if request.param != "a dump":
        request.getfixturevalue("create_topics")("content")

    def make(redis_url: str) -> Job:
        system = System(journal, redis_url, folder)
        redis = Redis.from_url(redis_url)
        request.addfinalizer(redis.close)
        if request.param == "a dump":
            # a key that is in Redis alone: restored, it is there again
            store = CounterStore(redis, STORE, "any")
            DirectWriter(store, ObjectsSettings(precision=PRECISION, derived={}), "any").add(
                "content", [b"a"]
            )
            return Job(
                system,
                redis,
                ("backfill", "content", "--create", "--from", hex_dump(system, KEYS)),
                more=[b"a"],
            )
        write_keys(system, "content", {0: KEYS[:500], 1: KEYS[500:]})
        if request.param == "a topic":
            return Job(system, redis, ("backfill", "content"))
        system.count(redis)
        if request.param == "a rebuild":
            return Job(system, redis, ("rebuild", "content", "--precision", "16"), 16)
        return Job(system, redis, ("verify", "content"))

    return make


def test_a_redis_that_dies_and_comes_back_is_waited_for(
    job: Callable[[str], Job], own_redis: OwnRedis
) -> None:
    server = own_redis(data=True)
    task = job(server.url)
    with task.system.process(*task.arguments, at={"before 5": "hold"}) as process:
        process.expect("before 5, hold")
        server.kill()
        process.release()
        process.expect("waiting: ")
        server.restart()
        ended = process.end()
    assert "going on\n" in ended.err
    task.check(ended)
    [row] = task.system.checkpoints().list()
    assert row.items == {"ok": 1_000, "failed": 0}


def test_a_task_that_lost_its_claim_to_another_process_writes_nothing_and_waits(
    job: Callable[[str], Job], redis_url: str
) -> None:
    """Its connection was cut, and it does not know yet."""
    task = job(redis_url)
    with task.system.process(*task.arguments, at={"before 5": "hold"}) as process:
        process.expect("before 5, hold")
        [before] = task.system.checkpoints().list()
        holder = json.loads(task.redis.get(f"{{{STORE}}}:claim:{before.name}") or "")
        task.redis.client_kill_filter(_id=holder["client"])
        with task.system.checkpoints().claim(before.name):
            process.release()
            process.expect("waiting: the claim on")
            tried = attempts(task.redis)
            wait_for(lambda: attempts(task.redis) > tried)
            assert task.system.checkpoints().get(before.name) == before
        ended = process.end()
    task.check(ended)


def attempts(redis: Redis) -> int:
    """How often anybody tried to take a claim: each time, a connection is named."""
    return int(redis.info("commandstats")["cmdstat_client|setname"]["calls"])


def test_a_redis_that_stands_still_is_waited_for(
    own_redis: OwnRedis, journal_settings: JournalSettings, tmp_path: Path
) -> None:
    """Longer than redis.timeout."""
    server = own_redis()
    system = System(journal_settings, server.url, tmp_path)
    command = ("backfill", "content", "--create", "--from", hex_dump(system, KEYS))
    with Redis.from_url(server.url) as redis, system.process(*command, at={"before 5": "hold"}) as process:
        process.expect("before 5, hold")
        server.pause()
        process.release()
        process.expect("waiting: ")
        server.resume()
        Job(system, redis, command).check(process.end())


def test_a_redis_that_stays_away_ends_the_task_in_one_line(
    own_redis: OwnRedis, journal_settings: JournalSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.cli.tasks.PATIENCE", 0.2)
    server = own_redis()
    system = System(journal_settings, server.url, tmp_path)
    ended = system.run(
        "backfill", "content", "--create", "--from", hex_dump(system, KEYS), at={"before 5": server.kill}
    )
    assert (ended.code, ended.out, "Traceback" in ended.err) == (2, "", False)
    assert [line for line in ended.err.splitlines() if line.startswith("waiting: ")] != []
    assert ended.err.splitlines()[-1].startswith("counters: Redis does not answer: ")


def test_a_signal_ends_a_task_that_waits_for_redis(
    own_redis: OwnRedis, journal_settings: JournalSettings, tmp_path: Path
) -> None:
    server = own_redis()
    system = System(journal_settings, server.url, tmp_path)
    command = ("backfill", "content", "--create", "--from", hex_dump(system, KEYS))
    with system.process(*command, at={"before 5": "hold"}) as process:
        process.expect("before 5, hold")
        server.kill()
        process.release()
        process.expect("waiting: ")
        process.signal(signal.SIGTERM)
        ended = process.end()
    assert (ended.code, ended.err.splitlines()[-1]) == (
        130,
        "backfill:content:keys.hex was stopped; the same command goes on where it stopped",
    )


def snapshot_of(redis: Redis) -> dict[bytes, bytes]:
    """All keys as they are."""
    return {key: redis.dump(key) for key in redis.scan_iter()}


def restore(redis: Redis, snapshot: dict[bytes, bytes]) -> None:
    """Make Redis what it was, in one step."""
    with redis.pipeline(transaction=True) as pipeline:
        pipeline.flushdb()
        for key, value in snapshot.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()


@pytest.mark.parametrize("moment", ["before 7", "after 7"])
def test_a_redis_that_becomes_older_under_a_task_loses_no_batch(
    moment: str, job: Callable[[str], Job], redis_url: str
) -> None:
    """In the middle of a batch, or between two: no connection ends, and the claim still holds."""
    task = job(redis_url)
    seen: list[dict[bytes, bytes]] = []
    task.run(
        {
            "before 4": lambda: seen.append(snapshot_of(task.redis)),
            moment: lambda: restore(task.redis, seen[0]),
        }
    )


@pytest.mark.parametrize("moment", ["before 7", "after 7"])
def test_a_redis_that_comes_back_older_loses_no_batch(
    moment: str, job: Callable[[str], Job], own_redis: OwnRedis
) -> None:
    server = own_redis(data=True, appendonly="no")
    task = job(server.url)

    def come_back() -> None:
        server.kill()
        server.restart()

    task.run({"before 4": task.redis.save, moment: come_back})


def test_a_redis_that_comes_back_older_while_a_task_is_paused_loses_no_batch(
    job: Callable[[str], Job], own_redis: OwnRedis
) -> None:
    """Older even than the pause, so that the task goes on."""
    server = own_redis(data=True, appendonly="no")
    task = job(server.url)
    with task.system.process(*task.arguments, at={"before 4": "hold", "before 7": "hold"}) as process:
        process.expect("before 4, hold")
        task.redis.save()
        process.release()
        process.expect("before 7, hold")
        task.system.checkpoints().pause(task.name)
        process.release()
        process.expect("is paused; waiting")
        server.kill()
        server.restart()
        task.check(process.end())


def test_a_redis_that_comes_back_empty_has_the_task_begin_anew(
    own_redis: OwnRedis, journal_settings: JournalSettings, tmp_path: Path
) -> None:
    server = own_redis()
    system = System(journal_settings, server.url, tmp_path)

    def come_back() -> None:
        server.kill()
        server.restart()

    with Redis.from_url(server.url) as redis:
        command = ("backfill", "content", "--create", "--from", hex_dump(system, KEYS))
        Job(system, redis, command).run({"before 7": come_back})


def test_a_clock_set_back_an_hour_changes_nothing(job: Callable[[str], Job], redis_url: str) -> None:
    """Everything in the row was written in what is the future now."""
    task = job(redis_url)

    def set_back() -> None:
        row = json.loads(task.redis.hget(ROWS, task.name) or "")
        stamps = {name: str(int(row[name]) + 3_600_000_000) for name in ("updated_at", "heartbeat_at")}
        task.redis.hset(ROWS, task.name, json.dumps(row | stamps))

    task.run({"before 4": set_back})
    [row] = task.system.checkpoints().list()
    assert row.items == {"ok": 1_000, "failed": 0}


def test_a_counter_evicted_under_a_task_is_complete_in_the_end(
    redis_url: str, journal_settings: JournalSettings, tmp_path: Path
) -> None:
    system = System(journal_settings, redis_url, tmp_path)
    with Redis.from_url(redis_url) as redis:
        strata = CounterSpec("content", PRECISION).keys(STORE)
        command = ("backfill", "content", "--create", "--from", hex_dump(system, KEYS))
        Job(system, redis, command).run({"before 5": lambda: redis.delete(*strata)})
