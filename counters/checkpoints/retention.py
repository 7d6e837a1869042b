"""Deletes what is old and needed no more. What would be deleted, and what is, are found by the same rule.

Kinds, a closed list:

- ``receipts`` older than the cutoff, unless a node may still do a batch from before it again
  (:mod:`counters.checkpoints.veto`);
- ``finished``: rows of tasks that have no position, since their scan is complete, and were last written
  before the cutoff. Not those that are paused, damaged, claimed by a runner, or of the system.

The cutoff is the store's clock less a window. Each kind is deleted by a task, ``prune:<kind>``, batch after
batch, which an operator may pause. The rule is asked anew before every batch, and the cursor is written after
it: a batch that is run again finds less to delete.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from counters.checkpoints.model import DAMAGED, RESERVED, AlreadyRunning, Checkpoint, Desired
from counters.checkpoints.receipts import Receipts
from counters.checkpoints.runner import Done, Outcome, Turn, run_batches
from counters.checkpoints.store import Checkpoints
from counters.checkpoints.veto import NODE, Answer, Verdict, decide
from counters.errors import InputError, SettingsError, StoreError

RECEIPTS, FINISHED = "receipts", "finished"

KINDS: Final = (RECEIPTS, FINISHED)
"""What can be pruned, in this order."""

MIN_WINDOW = timedelta(days=1)
"""Clocks are set by less than this, and nodes say once a minute that they are idle: ages that are compared to
such a window are sound."""

BATCH = 5_000
"""Receipts per batch, a few milliseconds for Redis."""

ROWS = 200
"""Rows per batch; each is claimed before it is deleted, which takes about a millisecond."""

BUDGET = 1_000_000
"""Deletions per call, unless it says otherwise."""

PRUNE = "prune"
"""Operation of the tasks that prune: ``prune:<kind>``."""

_KEPT = RESERVED | {NODE, PRUNE}
"""Operations whose rows are never finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be deleted.

    Attributes:
        kind: one of :data:`KINDS`.
        cutoff: what is older may go (UTC, the store's clock).
        deletable: how much is older.
        verdict: whether it may be deleted now.
    """

    kind: str
    cutoff: datetime
    deletable: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted.

    Attributes:
        kind: one of :data:`KINDS`.
        verdict: the last one. "blocked" may have ended it half-way.
        deleted: how much.
        budget_exhausted: there is more that may be deleted; the next call goes on.
        paused: the operator wants it paused; there may be more.
    """

    kind: str
    verdict: Verdict
    deleted: int = 0
    budget_exhausted: bool = False
    paused: bool = False


@dataclass(slots=True)
class _Pruning:
    """A prune of one kind, under way."""

    verdict: Verdict
    budget: int
    deleted: int = 0

    def count(self, deleted: int) -> None:
        self.deleted += deleted
        self.budget -= deleted

    def exhausted(self) -> bool:
        return self.budget < 1


class Retention:
    """Plans and prunes.

    Args:
        checkpoints: of the store that holds the receipts, since their ages are compared.
        window: how long things are kept.

    Raises:
        SettingsError: the window is below one day.
    """

    def __init__(self, checkpoints: Checkpoints, receipts: Receipts, window: timedelta) -> None:
        if window < MIN_WINDOW:
            raise SettingsError(
                f"receipts are to be kept for {window / MIN_WINDOW:g} days, less than the 1 below which ages "
                "cannot be compared safely; set retention.receipts_days"
            )
        self._checkpoints = checkpoints
        self._receipts = receipts
        self._window = window

    def plan(self, only: Collection[str] | None = None) -> list[Plan]:
        """What would be deleted, by kind; ``only`` names the kinds, None: all.

        Raises:
            InputError: there is no such kind.
        """
        return [self._look(kind)[0] for kind in _chosen(only)]

    def prune(self, only: Collection[str] | None = None, budget: int = BUDGET) -> list[Pruned]:
        """Delete what :meth:`plan` says, at most ``budget`` of all kinds together.

        Raises:
            InputError: there is no such kind, or the budget is below one.
            AlreadyRunning: another process prunes the same kind.
        """
        if budget < 1:
            raise InputError(f"a budget of {budget} deletes nothing; it must be at least 1")
        results: list[Pruned] = []
        for kind in _chosen(only):
            results.append(self._prune(kind, budget))
            budget -= results[-1].deleted
        return results

    def _prune(self, kind: str, budget: int) -> Pruned:
        verdict = self._look(kind)[0].verdict
        if verdict.answer is not Answer.PRUNE:
            return Pruned(kind, verdict)
        pruning = _Pruning(verdict, budget)
        batch = partial(self._some_receipts if kind == RECEIPTS else self._some_rows, pruning)
        name = f"{PRUNE}:{kind}"
        with self._checkpoints.claim(name) as claim:
            run = run_batches(
                self._checkpoints,
                name,
                batch,
                claim=claim,
                max_batches=None,
                stopping=pruning.exhausted,
            )
        return Pruned(
            kind,
            pruning.verdict,
            pruning.deleted,
            budget_exhausted=run.outcome is Outcome.STOPPED,
            paused=run.outcome is Outcome.PAUSED,
        )

    def _look(self, kind: str) -> tuple[Plan, list[str]]:
        """The one rule: what may be deleted now; of finished rows also their names, in order."""
        cutoff = self._checkpoints.now() - self._window
        rows: list[Checkpoint] | None
        try:
            rows = self._checkpoints.list()
        except StoreError:
            rows = None
        if kind == RECEIPTS:
            old = self._receipts.count_before(cutoff)
            return Plan(kind, cutoff, old, decide(rows, cutoff, old)), []
        if rows is None:
            return Plan(kind, cutoff, 0, decide(None, cutoff, 0)), []
        names = [row.name for row in rows if is_finished(row, cutoff)]
        return Plan(kind, cutoff, len(names), Verdict(Answer.PRUNE if names else Answer.OK)), names

    def _some_receipts(self, pruning: _Pruning, _turn: Turn) -> Done:
        """Delete the oldest. The cursor only tells how far that is: what is done is gone."""
        plan, _ = self._look(RECEIPTS)
        pruning.verdict = plan.verdict
        if plan.verdict.answer is not Answer.PRUNE:
            return Done(None)
        deleted = self._receipts.delete_before(plan.cutoff, min(BATCH, pruning.budget))
        pruning.count(deleted)
        rest = plan.deletable - deleted
        cursor = {"done": pruning.deleted, "total": pruning.deleted + rest}
        return Done(cursor if rest > 0 else None, ok=deleted)

    def _some_rows(self, pruning: _Pruning, turn: Turn) -> Done:
        """Delete finished rows by name, from the cursor on; those that somebody runs are stepped over."""
        plan, names = self._look(FINISHED)
        after = str(turn.cursor.get("after", ""))
        rest = [name for name in names if name > after]
        some = rest[: min(ROWS, pruning.budget)]
        deleted = sum(self._delete_row(name, plan.cutoff) for name in some)
        pruning.count(deleted)
        cursor = {"after": some[-1]} if len(rest) > len(some) else None
        return Done(cursor, ok=deleted, failed=len(some) - deleted)

    def _delete_row(self, name: str, cutoff: datetime) -> bool:
        """Delete a row, if it still is finished and nobody runs it; whether that was so."""
        try:
            with self._checkpoints.claim(name):
                row = self._checkpoints.get(name)
                return row is not None and is_finished(row, cutoff) and self._checkpoints.delete(name)
        except (AlreadyRunning, InputError, StoreError):
            return False


def is_finished(row: Checkpoint, cutoff: datetime) -> bool:
    """Whether the scan of a task is complete, and nothing was written to its row since ``cutoff``."""
    return (
        not row.position
        and row.updated_at < cutoff
        and row.desired is not Desired.PAUSED
        and row.observed != DAMAGED
        and row.name.partition(":")[0] not in _KEPT
    )


def _chosen(only: Collection[str] | None) -> list[str]:
    unknown = sorted(set(only or ()) - set(KINDS))
    if unknown:
        raise InputError(f"nothing of the kind {unknown[0]!r} is pruned; the kinds are {', '.join(KINDS)}")
    return [kind for kind in KINDS if only is None or kind in only]
