"""Runs a task batch by batch.

1. Read the row: paused, nothing begins; else its cursor, and nothing else, says where to go on.
2. Make sure that the claim is still held.
3. The batch works, and says where the next one starts.
4. Cursor, counts and heartbeat are written in one step, which is refused if the cursor was moved meanwhile or
   the claim is lost. Of the two orders, each task says which it uses:
   *with* the work, in the work's own transaction: nothing happens twice; or
   *after* it: a batch is run again after a crash, so its effect must be idempotent.
5. One event tells what the batch did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import (
    IDLE,
    NO_POSITION,
    RUNNING,
    Advance,
    Checkpoint,
    Counts,
    Cursor,
    CursorMoved,
    Desired,
    NotFound,
    add_counts,
    runner,
)
from counters.checkpoints.store import Checkpoints

logger = logging.getLogger(__name__)

MAX_BATCHES = 10
"""Batches per call, unless it says otherwise."""


class Outcome(StrEnum):
    """Why a run ended."""

    COMPLETE = "complete"
    """The scan reached its end; the cursor is cleared."""

    PAUSED = "paused"
    """The operator wants it paused."""

    LIMIT = "limit"
    """It did as many batches as it was asked for; the next run goes on."""

    STOPPED = "stopped"
    """The process was asked to end."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a batch did.

    Attributes:
        cursor: where the next batch starts; None: the scan reached its end.
        ok: items done.
        failed: items that could not be, and were stepped over.
        counts: what else to add to the counts of the run.
        recorded: the work's own transaction wrote all of this, with ``turn.advance``.
    """

    cursor: Cursor | None
    ok: int = 0
    failed: int = 0
    counts: Counts = field(default_factory=dict)
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What a batch is given.

    Attributes:
        name: the task.
        cursor: where to go on; empty: from the beginning.
    """

    name: str
    cursor: dict[str, Any]
    _token: str
    _counts: Counts
    _claim: Claim | None
    _runner: str

    def advance(self, done: Done) -> Advance:
        """The write that records ``done``: for the transaction of the work, if the two go together."""
        return Advance(
            self.name,
            done.cursor,
            self.counts(done),
            expected=self._token,
            fence=None if self._claim is None else self._claim.fence,
            runner=self._runner,
            ok=done.ok,
            failed=done.failed,
        )

    def counts(self, done: Done) -> dict[str, Any]:
        """The counts of the run after ``done``."""
        return add_counts(self._counts, {"ok": done.ok, "failed": done.failed, **done.counts})


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """What is told about every batch.

    Attributes:
        seconds: by the monotonic clock.
        error: why it failed; None: it did not.
    """

    name: str
    ok: int
    failed: int
    seconds: float
    cursor: Cursor | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a run did. ``counts`` are those of this run alone."""

    outcome: Outcome
    batches: int
    counts: dict[str, Any]


Batch = Callable[[Turn], Done]
OnBatch = Callable[[BatchEvent], None]


def log_batch(event: BatchEvent) -> None:
    """Tell the log. An error is raised as well, and told by whoever handles it."""
    fields = {"task": event.name, "ok": event.ok, "failed": event.failed, "seconds": round(event.seconds, 3)}
    logger.debug("batch done" if event.error is None else f"batch failed: {event.error}", extra=fields)


def _never() -> bool:
    return False


def run_batches(
    store: Checkpoints,
    name: str,
    batch: Batch,
    *,
    claim: Claim | None = None,
    max_batches: int | None = MAX_BATCHES,
    on_batch: OnBatch = log_batch,
    stopping: Callable[[], bool] = _never,
) -> Run:
    """Run batches of ``name`` until its scan is complete, or one of the other outcomes.

    Args:
        claim: under which everything is written; refused writes raise ClaimLost.
        max_batches: None: no limit.
        stopping: asked before every batch.

    Raises:
        Exception: whatever ``batch`` raised. The cursor stays where it was.
    """
    counts: dict[str, Any] = {}
    batches = 0
    by = runner()
    before: str | None = None
    try:
        while True:
            row = store.get(name)
            if before is None:
                before = IDLE if row is None else row.observed
            outcome = _ended(row, batches, max_batches, stopping)
            if outcome is not None:
                return Run(outcome, batches, counts)
            if claim is not None:
                claim.check()
            turn = _turn(name, row, counts, claim, by)
            done = _run_one(store, turn, batch, on_batch)
            if done is None:
                continue
            counts = turn.counts(done)
            batches += 1
            if done.cursor is None:
                return Run(Outcome.COMPLETE, batches, counts)
    finally:
        if batches and before is not None:
            _report(store, name, before, claim)


def _ended(
    row: Checkpoint | None, batches: int, max_batches: int | None, stopping: Callable[[], bool]
) -> Outcome | None:
    if row is not None and row.desired is Desired.PAUSED:
        return Outcome.PAUSED
    if max_batches is not None and batches >= max_batches:
        return Outcome.LIMIT
    return Outcome.STOPPED if stopping() else None


def _turn(name: str, row: Checkpoint | None, counts: Counts, claim: Claim | None, by: str) -> Turn:
    if row is None:
        return Turn(name, {}, NO_POSITION, counts, claim, by)
    return Turn(name, row.position, row.token, counts, claim, by)


def _run_one(store: Checkpoints, turn: Turn, batch: Batch, on_batch: OnBatch) -> Done | None:
    """One batch with its record; None if the cursor was moved meanwhile: it goes on from there."""
    began = time.monotonic()
    try:
        done = batch(turn)
        if not done.recorded:
            store.apply(turn.advance(done))
    except Exception as error:
        seconds = time.monotonic() - began
        on_batch(BatchEvent(turn.name, 0, 0, seconds, turn.cursor, str(error) or type(error).__name__))
        if isinstance(error, CursorMoved):
            logger.warning("%s; going on from there", error)
            return None
        raise
    seconds = time.monotonic() - began
    on_batch(BatchEvent(turn.name, done.ok, done.failed, seconds, done.cursor))
    return done


def _report(store: Checkpoints, name: str, state: str, claim: Claim | None) -> None:
    """The runner is done: report what was reported before it ran. That is a report, and fails nothing."""
    try:
        fence = None if claim is None else claim.fence
        store.update(name, state=IDLE if state == RUNNING else state, fence=fence)
    except NotFound:
        pass  # deleted meanwhile
    except Exception as error:
        logger.debug("the state of %s could not be reported: %s", name, error)
