"""One read for many readers: who joins, who waits, and what is published meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from counters.checkpoints.model import DAMAGED, Checkpoint, Desired
from counters.checkpoints.operations import progress
from counters.checkpoints.snapshots import EXPORTED, Snapshot, Snapshots
from counters.errors import StoreUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAIT = 10.0
"""Seconds for what happens at once; more than a test has to wait."""


def row(
    name: str, *, age: int = 0, observed: str = "idle", position: dict[str, object] | None = None
) -> Checkpoint:
    return Checkpoint(name, position or {}, {}, Desired.RUN, observed, NOW - timedelta(seconds=age))


class Store:
    """Answers when it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.reads = 0
        self.open = threading.Event()
        self.open.set()
        self.rows = [row("backfill:a")]
        self.error: Exception | None = None

    def read(self) -> Snapshot:
        self.reads += 1
        rows = self.rows
        assert self.open.wait(WAIT)
        if self.error is not None:
            raise self.error
        return Snapshot.of(rows, NOW)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    with ExitStack() as stack:
        stack.callback(store.open.set)
        yield store


def test_who_asks_soon_after_gets_the_same_read(store: Store) -> None:
    snapshots = Snapshots(store.read, fresh=WAIT)
    assert snapshots.exported(WAIT) is snapshots.exported(WAIT)
    assert store.reads == 1


def test_who_asks_later_gets_a_new_one(store: Store) -> None:
    snapshots = Snapshots(store.read, fresh=0.0)
    snapshots.exported(WAIT)
    store.rows = []
    # a read is followed by a rest of nine times its length, here some microseconds
    deadline = threading.Event()
    while snapshots.exported(WAIT):
        assert not deadline.wait(0.001)
        assert store.reads < 10_000


def test_those_who_ask_during_a_read_share_it(store: Store) -> None:
    store.open.clear()
    snapshots = Snapshots(store.read, fresh=WAIT)

    async def ask() -> list[Snapshot]:
        asking = [asyncio.create_task(snapshots.current(WAIT)) for _ in range(50)]
        await asyncio.sleep(0)
        store.open.set()
        return await asyncio.gather(*asking)

    assert len({id(found) for found in asyncio.run(ask())}) == 1
    assert store.reads == 1


def test_after_a_write_a_read_in_progress_is_not_enough(store: Store) -> None:
    store.open.clear()
    snapshots = Snapshots(store.read, fresh=WAIT)
    assert snapshots.exported(0.0) is None  # it has begun
    store.rows = [row("backfill:a"), row("backfill:b")]
    snapshots.outdate()
    store.open.set()
    assert len(snapshots.exported(WAIT) or ()) == 2


def test_an_error_is_for_all_who_ask_and_asked_for_once(store: Store) -> None:
    store.error = StoreUnavailable("Redis does not answer")
    snapshots = Snapshots(store.read, fresh=WAIT)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            asyncio.run(snapshots.current(WAIT))
    assert snapshots.exported(WAIT) is None
    assert store.reads == 1


def test_nobody_waits_for_longer_than_they_want(store: Store) -> None:
    store.open.clear()
    snapshots = Snapshots(store.read)
    with pytest.raises(TimeoutError):
        asyncio.run(snapshots.current(0.01))


def test_metrics_show_the_read_before_while_one_takes_long(store: Store) -> None:
    snapshots = Snapshots(store.read)
    assert snapshots.exported(WAIT)
    snapshots.outdate()
    store.open.clear()
    assert [one.name for one in snapshots.exported(0.01) or ()] == ["backfill:a"]
    assert asyncio.run(snapshots.exported_soon(0.01)) is not None


def test_metrics_show_nothing_once_the_store_cannot_be_read(store: Store) -> None:
    snapshots = Snapshots(store.read)
    assert snapshots.exported(WAIT)
    snapshots.outdate()
    store.error = StoreUnavailable("Redis does not answer")
    assert snapshots.exported(WAIT) is None
    assert asyncio.run(snapshots.exported_soon(WAIT)) is None


def test_of_many_tasks_those_written_to_last_have_metrics() -> None:
    rows = [row(f"backfill:n{number:04}", age=number) for number in range(EXPORTED + 50)]
    exported = Snapshot.of(rows, NOW).exported
    assert {one.name for one in exported} == {one.name for one in rows[:EXPORTED]}


def test_what_the_system_writes_or_nobody_can_read_has_no_metrics() -> None:
    rows = [row("backfill:a"), row("journal:readers"), row("schema:core"), row("x", observed=DAMAGED)]
    assert [one.name for one in Snapshot.of(rows, NOW).exported] == ["backfill:a"]


def test_rows_are_found_and_turned_over_by_name() -> None:
    rows = [row("a:1"), row("a:2", observed="running"), row("b:1")]
    snapshot = Snapshot.of(rows, NOW)
    assert [snapshot.find(name) for name in ("a:2", "a:3", "z:1")] == [rows[1], None, None]
    assert snapshot.page(None, "", 2) == (3, rows[:2])
    assert snapshot.page(None, "a:2", 2) == (3, rows[2:])
    assert snapshot.page("idle", "a:1", 2) == (2, rows[2:])
    assert snapshot.page("paused", "", 2) == (0, [])


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ({"done": 1, "total": 4}, 0.25),
        ({"done": 9, "total": 4}, 1.0),
        ({"done": -1, "total": 4}, 0.0),
        ({"done": 1, "total": 0}, None),
        ({"done": "1", "total": 4}, None),
        ({"done": True, "total": 4}, None),
        ({"done": 1}, None),
        ({}, None),
    ],
)
def test_progress_is_known_of_those_who_say_how_much_there_is(
    position: dict[str, object], expected: float | None
) -> None:
    assert progress(row("a:1", position=position)) == expected


def test_progress_is_looked_for_in_the_counts_as_well() -> None:
    counted = Checkpoint("a:1", {}, {"done": 1, "total": 2}, Desired.RUN, "idle", NOW)
    assert progress(counted) == 0.5
