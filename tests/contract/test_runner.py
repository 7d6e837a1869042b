"""Batches of a task: where they begin, when they stop, and what a crash leaves behind. On every store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checkpoint_stores import Place, RedisPlace, SqlPlace
from redis import Redis
from sqlalchemy import Column, Integer, MetaData, Table, insert, select

from counters.checkpoints.model import Advance, ClaimLost
from counters.checkpoints.redis_store import ROW_LUA, RedisCheckpoints, raise_refused
from counters.checkpoints.runner import BatchEvent, Done, Outcome, Run, Turn, run_batches
from counters.checkpoints.sql_store import SqlCheckpoints
from counters.checkpoints.store import Checkpoints
from counters.sql import writing

NAME = "backfill:content"


class Steps:
    """A scan of ``end`` steps. The n-th batch moves the cursor to n."""

    def __init__(self, end: int = 100) -> None:
        self.end = end
        self.began: list[int] = []

    def __call__(self, turn: Turn) -> Done:
        at = turn.cursor.get("next", 0)
        self.began.append(at)
        return Done({"next": at + 1} if at + 1 < self.end else None, ok=1)


class Crash(BaseException):
    """The process ends here."""


def position(store: Checkpoints) -> dict[str, Any]:
    row = store.get(NAME)
    return {} if row is None else row.position


def test_the_next_run_goes_on_where_the_last_one_stopped(store: Checkpoints) -> None:
    store.advance(NAME, {"next": 1})
    steps = Steps()
    first = run_batches(store, NAME, steps, max_batches=3)
    second = run_batches(store, NAME, steps, max_batches=2)
    assert (first.outcome, first.batches, second.batches) == (Outcome.LIMIT, 3, 2)
    assert steps.began == [1, 2, 3, 4, 5]
    assert position(store) == {"next": 6}


def test_a_run_is_ten_batches_unless_it_says_otherwise(store: Checkpoints) -> None:
    assert run_batches(store, NAME, Steps()).batches == 10
    assert run_batches(store, NAME, Steps(30), max_batches=None).outcome is Outcome.COMPLETE


def test_a_task_that_is_paused_does_not_begin(store: Checkpoints) -> None:
    store.pause(NAME)
    steps = Steps()
    assert run_batches(store, NAME, steps) == Run(Outcome.PAUSED, 0, {})
    assert steps.began == []


def test_a_pause_during_a_batch_lets_it_finish_and_keeps_the_next_from_beginning(
    at: Place, store: Checkpoints
) -> None:
    operator, steps = at.open(), Steps()

    def batch(turn: Turn) -> Done:
        if len(steps.began) == 1:
            operator.pause(NAME)
        return steps(turn)

    run = run_batches(store, NAME, batch)
    row = store.get(NAME)
    assert row is not None
    assert (run.outcome, run.batches, row.position, row.state) == (Outcome.PAUSED, 2, {"next": 2}, "paused")
    store.resume(NAME)
    assert run_batches(store, NAME, steps, max_batches=1).batches == 1
    assert steps.began == [0, 1, 2]


def test_a_run_that_is_asked_to_end_stops_between_two_batches(store: Checkpoints) -> None:
    steps = Steps()
    run = run_batches(store, NAME, steps, stopping=lambda: len(steps.began) == 2)
    assert (run.outcome, run.batches, position(store)) == (Outcome.STOPPED, 2, {"next": 2})


def test_a_complete_scan_clears_the_cursor_and_keeps_counts_and_state(store: Checkpoints) -> None:
    store.put(NAME, {"next": 3}, {}, "active")
    run = run_batches(store, NAME, Steps(5))
    row = store.get(NAME)
    assert row is not None
    assert (run.outcome, run.batches) == (Outcome.COMPLETE, 2)
    assert (row.position, row.counts, row.state) == ({}, {"ok": 2, "failed": 0}, "active")


def test_a_run_reports_itself_running_and_idle_again(store: Checkpoints) -> None:
    states: list[str | None] = []

    def batch(turn: Turn) -> Done:
        row = store.get(NAME)
        states.append(row.state if row else None)
        return Steps(3)(turn)

    run_batches(store, NAME, batch)
    row = store.get(NAME)
    assert row is not None
    assert (states, row.state) == ([None, "running", "running"], "idle")


def test_an_error_ends_the_run_and_leaves_the_cursor(store: Checkpoints) -> None:
    events: list[BatchEvent] = []

    def batch(turn: Turn) -> Done:
        if turn.cursor.get("next") == 2:
            raise ZeroDivisionError("no way on")
        return Steps()(turn)

    with pytest.raises(ZeroDivisionError):
        run_batches(store, NAME, batch, on_batch=events.append)
    assert position(store) == {"next": 2}
    assert [event.error for event in events] == [None, None, "no way on"]


def test_counts_add_up_over_the_batches_of_a_run_and_begin_anew_with_the_next(store: Checkpoints) -> None:
    def batch(turn: Turn) -> Done:
        done = Steps()(turn)
        return Done(done.cursor, ok=9, failed=1, counts={"examined": 10, "last": str(turn.cursor)})

    runs = [run_batches(store, NAME, batch, max_batches=3).counts for _ in range(2)]
    assert runs[0] == {"ok": 27, "failed": 3, "examined": 30, "last": "{'next': 2}"}
    assert runs[1] == runs[0] | {"last": "{'next': 5}"}
    row = store.get(NAME)
    assert row is not None
    assert (row.counts, row.items) == (runs[1], {"ok": 54, "failed": 6})


def test_every_batch_is_told_once_and_no_clock_makes_it_last_less_than_nothing(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[BatchEvent] = []
    hours = iter(range(0, -1_000_000, -3600))
    monkeypatch.setattr(time, "time", lambda: 1_772_366_400.0 + next(hours))
    run_batches(store, NAME, Steps(3), on_batch=events.append)
    assert [(event.name, event.ok, event.failed, event.error) for event in events] == [(NAME, 1, 0, None)] * 3
    assert [event.cursor for event in events] == [{"next": 1}, {"next": 2}, None]
    assert all(0 <= event.seconds < 60 for event in events)


@pytest.mark.parametrize("stamp", [1, 4_102_444_800_000_000], ids=["past", "future"])
def test_stamps_of_a_clock_that_was_wrong_decide_nothing(at: Place, store: Checkpoints, stamp: int) -> None:
    store.put(NAME, {"next": 4}, {}, "running")
    store.heartbeat(NAME, "host/17")
    at.change(NAME, updated_at=stamp, heartbeat_at=stamp, desired_at=stamp)
    with store.claim(NAME) as claim:
        run = run_batches(store, NAME, Steps(6), claim=claim)
    assert (run.outcome, run.batches) == (Outcome.COMPLETE, 2)


def test_a_cursor_that_was_moved_meanwhile_is_where_the_run_goes_on(at: Place, store: Checkpoints) -> None:
    operator, steps = at.open(), Steps(52)
    events: list[BatchEvent] = []

    def batch(turn: Turn) -> Done:
        if len(steps.began) == 1:
            operator.advance(NAME, {"next": 50})
        return steps(turn)

    run = run_batches(store, NAME, batch, on_batch=events.append)
    assert (run.outcome, run.batches) == (Outcome.COMPLETE, 3)
    assert steps.began == [0, 1, 50, 51]
    assert [event.error is None for event in events] == [True, False, True, True]


def test_a_task_that_was_deleted_meanwhile_begins_anew(at: Place, store: Checkpoints) -> None:
    operator, steps = at.open(), Steps()

    def batch(turn: Turn) -> Done:
        if len(steps.began) == 2:
            operator.delete(NAME)
        return steps(turn)

    run_batches(store, NAME, batch, max_batches=4)
    assert steps.began == [0, 1, 2, 0, 1]


def test_a_run_whose_claim_went_to_another_ends_and_records_nothing_more(
    at: Place, store: Checkpoints
) -> None:
    steps, claim = Steps(), store.claim(NAME)
    taken = []

    def batch(turn: Turn) -> Done:
        if len(steps.began) == 2:
            claim.release()
            taken.append(at.open().claim(NAME))
        return steps(turn)

    with pytest.raises(ClaimLost):
        run_batches(store, NAME, batch, claim=claim)
    assert position(store) == {"next": 2}
    taken[0].release()


def test_a_run_without_its_claim_does_not_begin(store: Checkpoints) -> None:
    steps, claim = Steps(), store.claim(NAME)
    claim.release()
    with pytest.raises(ClaimLost):
        run_batches(store, NAME, steps, claim=claim)
    assert steps.began == []


@pytest.mark.parametrize("where", ["before the record", "after the record"])
def test_a_batch_that_is_recorded_after_its_work_is_run_again_after_a_crash(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    apply = store.apply

    def crash(advance: Advance) -> None:
        if where == "after the record":
            apply(advance)
        raise Crash

    steps = Steps(3)
    with monkeypatch.context() as accident:
        accident.setattr(store, "apply", crash)
        with pytest.raises(Crash):
            run_batches(store, NAME, steps)
    assert run_batches(store, NAME, steps).outcome is Outcome.COMPLETE
    assert steps.began == ([0, 0, 1, 2] if where == "before the record" else [0, 1, 2])


Work = Callable[[Turn, Done, str], None]
"""Does the work of a batch and records it in one transaction. With a crash on the way: ``before`` the end of
the transaction, or ``after`` it."""


@pytest.fixture
def transactional(at: Place, store: Checkpoints) -> Iterator[tuple[Work, Callable[[], int]]]:
    """That work, and how much of it was done."""
    if isinstance(at, RedisPlace):
        assert isinstance(store, RedisCheckpoints)
        with Redis.from_url(at.url) as client:
            yield _in_redis(store, client), lambda: int(client.get("{counters}:work") or 0)
    else:
        assert isinstance(store, SqlCheckpoints)
        LINES.create(at.engine)
        yield _in_sql(store, at), lambda: _lines(at)


LINES = Table("lines", MetaData(), Column("id", Integer, primary_key=True), Column("text", Integer))


def _lines(at: SqlPlace) -> int:
    with at.engine.connect() as connection:
        return len(connection.execute(select(LINES)).all())


def _in_sql(store: SqlCheckpoints, at: SqlPlace) -> Work:
    def work(turn: Turn, done: Done, crash: str) -> None:
        with writing(at.engine) as connection:
            connection.execute(insert(LINES).values(text=1))
            store.within(connection).apply(turn.advance(done))
            if crash == "before":
                raise Crash
        if crash == "after":
            raise Crash

    return work


def _in_redis(store: RedisCheckpoints, client: Redis) -> Work:
    """The work is an INCR; the script makes both or none."""
    script = client.register_script(
        ROW_LUA + "local refused = checkpoint.refused(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])\n"
        "if refused then return refused end\n"
        "redis.call('INCR', KEYS[3])\n"
        "checkpoint.advance(KEYS[1], unpack(ARGV, 3))\n"
        "return 'ok'\n"
    )

    def work(turn: Turn, done: Done, crash: str) -> None:
        if crash == "before":
            raise Crash
        keys, arguments = store.encode(turn.advance(done))
        raise_refused(script(keys=[*keys, "{counters}:work"], args=arguments), turn.name)
        if crash == "after":
            raise Crash

    return work


@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_batch_that_is_recorded_with_its_work_is_neither_lost_nor_done_twice(
    store: Checkpoints, transactional: tuple[Work, Callable[[], int]], crash: str
) -> None:
    work, amount = transactional
    steps, accidents = Steps(5), iter(["", "", crash])

    def batch(turn: Turn) -> Done:
        done = steps(turn)
        work(turn, done, next(accidents, ""))
        return Done(done.cursor, ok=done.ok, recorded=True)

    with store.claim(NAME) as claim, pytest.raises(Crash):
        run_batches(store, NAME, batch, claim=claim)
    with store.claim(NAME) as claim:
        assert run_batches(store, NAME, batch, claim=claim).outcome is Outcome.COMPLETE
    row = store.get(NAME)
    assert row is not None
    assert (amount(), row.items["ok"], row.position) == (5, 5, {})


def test_the_work_of_a_former_holder_is_undone_with_its_record(
    at: Place, store: Checkpoints, transactional: tuple[Work, Callable[[], int]]
) -> None:
    work, amount = transactional
    former = store.claim(NAME)
    taken = []

    def batch(turn: Turn) -> Done:
        former.release()
        taken.append(at.open().claim(NAME))
        done = Steps()(turn)
        work(turn, done, "")
        return Done(done.cursor, recorded=True)

    with pytest.raises(ClaimLost):
        run_batches(store, NAME, batch, claim=former)
    assert (amount(), store.get(NAME)) == (0, None)
    taken[0].release()
