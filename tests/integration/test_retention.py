"""What nodes say about the batches they retry, and how long receipts and finished rows are kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from redis import Redis

from counters.checkpoints.model import IDLE, Advance, Checkpoint, NotFound
from counters.checkpoints.nodes import Node, forget_node
from counters.checkpoints.receipts import Receipts
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.retention import FINISHED, RECEIPTS, Retention
from counters.checkpoints.store import Checkpoints
from counters.checkpoints.veto import PENDING, Answer, Reason
from counters.errors import InputError, SettingsError

PREFIX = "counters"
ROWS = "{counters}:checkpoints"
WINDOW = timedelta(days=30)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def forward(self, seconds: float) -> None:
        self.seconds += seconds

    def __call__(self) -> float:
        return self.seconds


class Watched(RedisCheckpoints):
    """Counts the writes of rows."""

    writes = 0

    def apply(self, advance: Advance) -> None:
        self.writes += 1
        super().apply(advance)


@pytest.fixture
def checkpoints(redis_client: Redis) -> Watched:
    return Watched(redis_client, PREFIX)


@pytest.fixture
def receipts(redis_client: Redis) -> Receipts:
    return Receipts(redis_client, PREFIX)


@pytest.fixture
def retention(checkpoints: Watched, receipts: Receipts) -> Retention:
    return Retention(checkpoints, receipts, WINDOW)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def written(redis: Redis, at: datetime, *ids: str) -> None:
    """Receipts from another time."""
    redis.zadd("{counters}:receipts", dict.fromkeys(ids, int(at.timestamp() * 1_000_000)))


def row_of(checkpoints: Checkpoints, name: str) -> Checkpoint:
    row = checkpoints.get(name)
    assert row is not None
    return row


def aged(redis: Redis, name: str, age: timedelta) -> None:
    """Let the moments of a row be ``age`` older."""
    row = json.loads(redis.hget(ROWS, name) or b"")
    for field in ("updated_at", "heartbeat_at"):
        if field in row:
            row[field] = str(int(row[field]) - age // timedelta(microseconds=1))
    redis.hset(ROWS, name, json.dumps(row))


def fail(node: Node, batch: str, take: Callable[[], object] = int) -> None:
    """An attempt at ``batch`` that does ``take()`` and then fails."""

    def lose_answer() -> None:
        take()
        raise ConnectionError("the answer got lost")

    with pytest.raises(ConnectionError), node.attempt(batch):
        lose_answer()


# -- nodes


def test_the_first_failure_says_which_batch_is_pending_and_since_its_attempt_began(
    checkpoints: Watched, clock: Clock
) -> None:
    node = Node(checkpoints, "host one/7", clock)
    before = checkpoints.now()
    fail(node, "b1", lambda: clock.forward(30))
    row = row_of(checkpoints, "flush:host-one-7")
    assert (row.state, row.position["batch"]) == (PENDING, "b1")
    since = datetime.fromisoformat(row.position["pending_since"])
    assert before - 30 * SECOND <= since <= checkpoints.now() - 30 * SECOND


def test_later_failures_leave_the_moment_of_the_first_and_the_next_success_makes_it_idle(
    checkpoints: Watched, clock: Clock
) -> None:
    node = Node(checkpoints, "a", clock)
    fail(node, "b1")
    first = checkpoints.get("flush:a")
    fail(node, "b1")
    assert checkpoints.get("flush:a") == first
    with node.attempt("b1"):
        pass
    row = row_of(checkpoints, "flush:a")
    assert (row.state, row.position) == (IDLE, {})


def test_an_idle_node_says_so_at_most_once_a_minute(checkpoints: Watched, clock: Clock) -> None:
    node = Node(checkpoints, "a", clock)
    for _ in range(6):  # at 0, 20, 40, 60, 80 and 100 seconds
        with node.attempt("b"):
            pass
        node.idle()
        clock.forward(20)
    assert checkpoints.writes == 2


def test_a_row_that_cannot_be_written_fails_no_work_and_is_logged_once(
    redis_client: Redis, checkpoints: Watched, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    redis_client.set(ROWS, "something else")
    node, done = Node(checkpoints, "a", clock), 0
    for _ in range(3):
        with node.attempt("b"):
            done += 1
        clock.forward(61)
    fail(node, "c")
    assert done == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "flush:a" in caplog.text


def test_a_failure_that_could_not_be_written_is_later_with_the_moment_it_began(
    redis_client: Redis, checkpoints: Watched, clock: Clock
) -> None:
    node = Node(checkpoints, "a", clock)
    redis_client.set(ROWS, "something else")
    fail(node, "b1")
    redis_client.delete(ROWS)
    clock.forward(40 * 86_400)
    fail(node, "b1")
    since = datetime.fromisoformat(row_of(checkpoints, "flush:a").position["pending_since"])
    assert since <= checkpoints.now() - 40 * DAY


def test_a_process_takes_over_since_when_the_one_before_it_was_pending(
    checkpoints: Watched, clock: Clock
) -> None:
    fail(Node(checkpoints, "a", clock), "b1")
    first = checkpoints.get("flush:a")
    after = Node(checkpoints, "a", clock)
    fail(after, "b2")
    assert checkpoints.get("flush:a") == first
    with after.attempt("b2"):
        pass
    assert row_of(checkpoints, "flush:a").state == IDLE


def test_a_process_that_cannot_read_its_row_at_first_takes_it_over_later(
    redis_client: Redis, checkpoints: Watched, clock: Clock
) -> None:
    fail(Node(checkpoints, "a", clock), "b1")
    first = checkpoints.get("flush:a")
    redis_client.rename(ROWS, "{counters}:aside")
    redis_client.set(ROWS, "something else")
    after = Node(checkpoints, "a", clock)
    fail(after, "b1", lambda: redis_client.rename("{counters}:aside", ROWS))
    assert checkpoints.get("flush:a") == first


def test_a_process_that_was_killed_counts_as_silent_until_its_successor_succeeds(
    redis_client: Redis, checkpoints: Watched, clock: Clock
) -> None:
    with Node(checkpoints, "a", clock).attempt("b1"):
        pass
    aged(redis_client, "flush:a", 40 * DAY)
    silent = checkpoints.get("flush:a")
    with Node(checkpoints, "a", clock).attempt("b2"):
        assert checkpoints.get("flush:a") == silent
    assert row_of(checkpoints, "flush:a").updated_at > checkpoints.now() - DAY


def test_a_new_node_has_a_row_before_its_first_batch_has_an_effect(
    checkpoints: Watched, clock: Clock
) -> None:
    with Node(checkpoints, "a", clock).attempt("b1"):
        assert checkpoints.get("flush:a") is not None


def test_forgetting_a_node_removes_exactly_its_row_and_says_so(
    checkpoints: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for node in ("a", "ab", "b"):
        Node(checkpoints, node).idle()
    forget_node(checkpoints, "a")
    assert [row.name for row in checkpoints.list()] == ["flush:ab", "flush:b"]
    assert [record.task for record in caplog.records] == ["flush:a"]  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match="no node a"):
        forget_node(checkpoints, "a")


# -- retention


def old_receipts(redis: Redis, checkpoints: Watched, count: int, age: timedelta = 31 * DAY) -> None:
    written(redis, checkpoints.now() - age, *(f"t:0:{n}" for n in range(count)))


def finished(redis: Redis, checkpoints: Watched, name: str, age: timedelta = 31 * DAY) -> None:
    checkpoints.put(name, None, {"ok": 1}, IDLE)
    aged(redis, name, age)


def test_a_window_below_a_day_is_refused(checkpoints: Watched, receipts: Receipts) -> None:
    with pytest.raises(SettingsError, match=r"0\.5 days.*retention\.receipts_days"):
        Retention(checkpoints, receipts, timedelta(hours=12))
    Retention(checkpoints, receipts, timedelta(days=1))


def test_old_receipts_go_and_newer_ones_stay(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, retention: Retention
) -> None:
    Node(checkpoints, "a").idle()
    old_receipts(redis_client, checkpoints, 3)
    written(redis_client, checkpoints.now() - 29 * DAY, "newer")
    (plan,) = retention.plan([RECEIPTS])
    assert (plan.deletable, plan.verdict.answer) == (3, Answer.PRUNE)
    assert receipts.count() == 4
    (pruned,) = retention.prune([RECEIPTS])
    assert (pruned.deleted, pruned.budget_exhausted, pruned.paused) == (3, False, False)
    assert receipts.known(["newer"]) == {"newer"}
    assert row_of(checkpoints, "prune:receipts").counts["ok"] == 3


def test_a_node_with_an_old_batch_keeps_every_receipt(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, retention: Retention, clock: Clock
) -> None:
    Node(checkpoints, "b").idle()
    old_receipts(redis_client, checkpoints, 3)
    node = Node(checkpoints, "a", clock)
    fail(node, "b1", lambda: clock.forward(31 * 86_400))
    checkpoints.resume("flush:a")  # reads "idle"
    (plan,), (pruned,) = retention.plan([RECEIPTS]), retention.prune([RECEIPTS])
    for verdict in (plan.verdict, pruned.verdict):
        assert (verdict.reason, verdict.node) == (Reason.PENDING_OLD, "a")
    assert receipts.count() == 3
    with node.attempt("b1"):
        pass
    retention.prune([RECEIPTS])
    assert receipts.count() == 0


def test_a_silent_node_keeps_every_receipt_until_it_is_forgotten(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, retention: Retention
) -> None:
    for node in ("a", "b"):
        Node(checkpoints, node).idle()
    aged(redis_client, "flush:a", 31 * DAY)
    checkpoints.pause("flush:a")
    old_receipts(redis_client, checkpoints, 3)
    (pruned,) = retention.prune([RECEIPTS])
    assert (pruned.verdict.reason, pruned.verdict.node) == (Reason.HEARTBEAT_STALE, "a")
    assert receipts.count() == 3
    forget_node(checkpoints, "a")
    retention.prune([RECEIPTS])
    assert receipts.count() == 0


def test_rows_that_cannot_be_read_keep_every_receipt(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, retention: Retention
) -> None:
    old_receipts(redis_client, checkpoints, 3)
    redis_client.set(ROWS, "something else")
    assert {plan.verdict.reason for plan in retention.plan()} == {Reason.STORE_MISSING}
    retention.prune()
    assert receipts.count() == 3


def test_a_veto_that_comes_up_between_two_batches_stops_the_next(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Receipts):
        def delete_before(self, cutoff: datetime, limit: int) -> int:
            aged(redis_client, "flush:a", 31 * DAY)
            return super().delete_before(cutoff, limit)

    monkeypatch.setattr("counters.checkpoints.retention.BATCH", 2)
    Node(checkpoints, "a").idle()
    old_receipts(redis_client, checkpoints, 5)
    (pruned,) = Retention(checkpoints, Interrupted(redis_client, PREFIX), WINDOW).prune([RECEIPTS])
    assert (pruned.deleted, pruned.verdict.reason) == (2, Reason.HEARTBEAT_STALE)
    assert receipts.count() == 3


def test_a_pause_stops_a_prune_between_two_batches_and_the_next_goes_on(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pausing(Receipts):
        def delete_before(self, cutoff: datetime, limit: int) -> int:
            if self.count() < 5:
                checkpoints.pause("prune:receipts")
            return super().delete_before(cutoff, limit)

    monkeypatch.setattr("counters.checkpoints.retention.BATCH", 2)
    Node(checkpoints, "a").idle()
    old_receipts(redis_client, checkpoints, 5)
    retention = Retention(checkpoints, Pausing(redis_client, PREFIX), WINDOW)
    (pruned,) = retention.prune([RECEIPTS])
    assert (pruned.deleted, pruned.paused, receipts.count()) == (4, True, 1)
    assert row_of(checkpoints, "prune:receipts").position == {"done": 4, "total": 5}
    (pruned,) = retention.prune([RECEIPTS])
    assert (pruned.deleted, pruned.paused) == (0, True)
    checkpoints.resume("prune:receipts")
    (pruned,) = retention.prune([RECEIPTS])
    assert (pruned.deleted, pruned.paused) == (1, False)


def test_a_partial_prune_says_that_its_budget_is_exhausted(
    redis_client: Redis, checkpoints: Watched, receipts: Receipts, retention: Retention
) -> None:
    Node(checkpoints, "a").idle()
    old_receipts(redis_client, checkpoints, 5)
    finished(redis_client, checkpoints, "verify:content")
    finished(redis_client, checkpoints, "verify:origin")
    first, second = retention.prune(budget=3)
    assert (first.deleted, first.budget_exhausted) == (3, True)
    assert (second.deleted, second.budget_exhausted) == (0, True)
    first, second = retention.prune(budget=3)
    assert (first.deleted, first.budget_exhausted) == (2, False)
    assert (second.deleted, second.budget_exhausted) == (1, True)
    assert [(kind.deleted, kind.budget_exhausted) for kind in retention.prune()] == [(0, False), (1, False)]
    with pytest.raises(InputError, match="budget of 0"):
        retention.prune(budget=0)


def test_only_narrows_the_kinds_and_an_unknown_one_is_refused(retention: Retention) -> None:
    assert [plan.kind for plan in retention.plan()] == [RECEIPTS, FINISHED]
    assert [plan.kind for plan in retention.plan([FINISHED])] == [FINISHED]
    assert [pruned.kind for pruned in retention.prune([FINISHED, RECEIPTS])] == [RECEIPTS, FINISHED]
    for call in (retention.plan, retention.prune):
        with pytest.raises(InputError, match=r"'counters'.*receipts, finished"):
            call(["counters"])


def test_only_rows_of_tasks_that_are_long_finished_go(
    redis_client: Redis, checkpoints: Watched, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.checkpoints.retention.ROWS", 2)
    gone = [f"verify:{n}" for n in range(5)]
    for name in gone:
        finished(redis_client, checkpoints, name)
    finished(redis_client, checkpoints, "verify:recent", 29 * DAY)
    held = ("verify:00", "verify:01")
    for name in ("verify:paused", "journal:group", "schema:core", "flush:a", "prune:receipts", *held):
        finished(redis_client, checkpoints, name)
    checkpoints.pause("verify:paused")
    aged(redis_client, "verify:paused", 31 * DAY)
    checkpoints.put("verify:half", {"at": 3}, {}, IDLE)
    aged(redis_client, "verify:half", 31 * DAY)
    redis_client.hset(ROWS, "verify:damaged", "{")
    kept = {row.name for row in checkpoints.list()} - set(gone)

    assert [plan.deletable for plan in retention.plan([FINISHED])] == [7]
    with checkpoints.claim(held[0]), checkpoints.claim(held[1]):
        (pruned,) = retention.prune([FINISHED])
    assert pruned.deleted == 5
    assert {row.name for row in checkpoints.list()} == kept | {"prune:finished"}


def test_the_cutoff_is_by_the_clock_of_the_store(redis_client: Redis, receipts: Receipts) -> None:
    class Elsewhen(RedisCheckpoints):
        def now(self) -> datetime:
            return super().now() - 400 * DAY

    store = Elsewhen(redis_client, PREFIX)
    cutoff = Retention(store, receipts, WINDOW).plan()[0].cutoff
    assert abs(cutoff - (store.now() - WINDOW)) < DAY
