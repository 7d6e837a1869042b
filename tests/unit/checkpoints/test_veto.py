"""When receipts may be deleted: the whole table, and that nothing gets around it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counters.checkpoints.model import DAMAGED, IDLE, RUNNING, Checkpoint, Desired
from counters.checkpoints.veto import PENDING, Answer, Reason, Verdict, decide

CUTOFF = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEFORE, AFTER = CUTOFF - timedelta(seconds=1), CUTOFF + timedelta(seconds=1)

PRUNE, OK = Verdict(Answer.PRUNE), Verdict(Answer.OK)


def row(
    name: str,
    observed: str,
    heartbeat: datetime | None,
    position: dict[str, Any] | None = None,
    desired: Desired = Desired.RUN,
) -> Checkpoint:
    """A row that was written just now, as by an operator; what the node wrote is in the arguments."""
    return Checkpoint(
        name, position or {}, {}, desired, observed, AFTER + timedelta(days=9), heartbeat_at=heartbeat
    )


def idle(node: str, heartbeat: datetime | None, desired: Desired = Desired.RUN) -> Checkpoint:
    return row(f"flush:{node}", IDLE, heartbeat, desired=desired)


def pending(node: str, since: object, observed: str = PENDING, desired: Desired = Desired.RUN) -> Checkpoint:
    return row(f"flush:{node}", observed, AFTER, {"batch": "b1", "pending_since": since}, desired)


def blocked(reason: Reason, node: str | None = None) -> Verdict:
    return Verdict(Answer.BLOCKED, reason, node)


TABLE: dict[str, tuple[list[Checkpoint] | None, int, Verdict]] = {
    "all idle and heard of since the cutoff": ([idle("a", AFTER), idle("b", AFTER)], 5, PRUNE),
    "all idle, nothing to delete": ([idle("a", AFTER)], 0, OK),
    "one idle, heard of before the cutoff": (
        [idle("a", AFTER), idle("b", BEFORE)],
        5,
        blocked(Reason.HEARTBEAT_STALE, "b"),
    ),
    "idle, heard of at the cutoff": ([idle("a", CUTOFF)], 5, blocked(Reason.HEARTBEAT_STALE, "a")),
    "idle, never heard of": ([idle("a", None)], 5, blocked(Reason.HEARTBEAT_STALE, "a")),
    "pending since before the cutoff": (
        [pending("a", BEFORE.isoformat())],
        5,
        blocked(Reason.PENDING_OLD, "a"),
    ),
    "pending since the cutoff": ([pending("a", CUTOFF.isoformat())], 5, blocked(Reason.PENDING_OLD, "a")),
    "pending since after the cutoff": ([pending("a", AFTER.isoformat())], 5, PRUNE),
    "pending in another zone's time": (
        [pending("a", AFTER.astimezone(tz=None).isoformat())],
        5,
        PRUNE,
    ),
    "pending since no moment": (
        [pending("a", "yesterday")],
        5,
        blocked(Reason.UNPARSEABLE_PENDING_SINCE, "a"),
    ),
    "pending since a number": ([pending("a", 12)], 5, blocked(Reason.UNPARSEABLE_PENDING_SINCE, "a")),
    "pending since a moment of no zone": (
        [pending("a", "2026-04-01T00:00:00")],
        5,
        blocked(Reason.UNPARSEABLE_PENDING_SINCE, "a"),
    ),
    "pending and it does not say since when": (
        [row("flush:a", PENDING, AFTER)],
        5,
        blocked(Reason.UNPARSEABLE_PENDING_SINCE, "a"),
    ),
    "running": ([row("flush:a", RUNNING, AFTER)], 5, blocked(Reason.UNKNOWN_STATE, "a")),
    "a damaged row": ([row("flush:a", DAMAGED, None)], 5, blocked(Reason.UNKNOWN_STATE, "a")),
    "an unknown state with a good batch": (
        [pending("a", AFTER.isoformat(), observed="flushing")],
        5,
        blocked(Reason.UNKNOWN_STATE, "a"),
    ),
    "no nodes and something to delete": ([], 5, blocked(Reason.NO_HEARTBEATS)),
    "only rows of other tasks": ([row("backfill:content", IDLE, AFTER)], 5, blocked(Reason.NO_HEARTBEATS)),
    "no nodes and nothing to delete": ([], 0, OK),
    "the store is missing": (None, 5, blocked(Reason.STORE_MISSING)),
    "the store is missing and nothing to delete": (None, 0, blocked(Reason.STORE_MISSING)),
    "a row of another task is old": ([row("backfill:content", "?", BEFORE), idle("a", AFTER)], 5, PRUNE),
    "paused, and heard of since the cutoff": ([idle("a", AFTER, Desired.PAUSED)], 5, PRUNE),
    "paused after it went away": (
        [idle("a", BEFORE, Desired.PAUSED)],
        5,
        blocked(Reason.HEARTBEAT_STALE, "a"),
    ),
    "paused with an old batch": (
        [pending("a", BEFORE.isoformat(), desired=Desired.PAUSED)],
        5,
        blocked(Reason.PENDING_OLD, "a"),
    ),
    "resumed, which reads idle, with an old batch": (
        [pending("a", BEFORE.isoformat(), observed=IDLE)],
        5,
        blocked(Reason.PENDING_OLD, "a"),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_receipts_go_only_when_every_node_proves_that_it_needs_none(case: str) -> None:
    rows, deletable, verdict = TABLE[case]
    assert decide(rows, CUTOFF, deletable) == verdict


MOMENTS = st.sampled_from([BEFORE, CUTOFF, AFTER, datetime.max.replace(tzinfo=UTC)])
SINCE = st.one_of(MOMENTS.map(datetime.isoformat), st.text(max_size=30), st.none(), st.integers())
ROWS = st.builds(
    row,
    st.sampled_from(["flush:a", "flush:b", "backfill:content", "flushes:a"]),
    st.sampled_from([IDLE, PENDING, RUNNING, DAMAGED, ""]),
    st.none() | MOMENTS,
    st.just({}) | st.fixed_dictionaries({"pending_since": SINCE}),
    st.sampled_from(Desired),
)


def proves(row: Checkpoint) -> bool:
    """Whether the row proves that its node needs no old receipt, said in other words."""
    if "pending_since" in row.position:
        since = row.position["pending_since"]
        good = {moment.isoformat() for moment in (AFTER, datetime.max.replace(tzinfo=UTC))}
        return row.observed in (IDLE, PENDING) and since in good
    return row.observed == IDLE and row.heartbeat_at is not None and row.heartbeat_at > CUTOFF


@given(st.lists(ROWS, max_size=4), st.integers(0, 3))
def test_nothing_is_deleted_while_any_reason_against_it_holds(rows: list[Checkpoint], deletable: int) -> None:
    nodes = [row for row in rows if row.name.startswith("flush:")]
    verdict = decide(rows, CUTOFF, deletable)
    assert (verdict.answer is Answer.PRUNE) == (
        bool(nodes) and deletable > 0 and all(proves(row) for row in nodes)
    )
    assert (verdict.answer is Answer.BLOCKED) == (verdict.reason is not None)


@pytest.mark.parametrize("extreme", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_the_ends_of_the_calendar_are_moments_like_any_other(extreme: str) -> None:
    assert decide([pending("a", extreme)], CUTOFF, 1).answer is (
        Answer.PRUNE if extreme.startswith("9") else Answer.BLOCKED
    )


@pytest.mark.parametrize("reason", Reason)
def test_a_verdict_says_in_one_line_what_keeps_the_receipts(reason: Reason) -> None:
    text = str(Verdict(Answer.BLOCKED, reason, "a"))
    assert text.startswith(f"blocked ({reason}): ")
    assert "\n" not in text
    assert str(PRUNE) == "prune"
