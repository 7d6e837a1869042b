"""Whether receipts may be deleted: pure, and a veto.

A receipt makes it harmless to do something again. So those from before the *cutoff* may go only if every node
proves that it holds no batch from before it, which it would do again:

- it is *idle*, and said so after the cutoff; or
- it is *pending*: it has a batch that failed, and began it after the cutoff.

Anything else blocks. Ages are compared here, as nowhere else: both sides are readings of the store's clock,
they are a day or more apart, and what is decided is to keep something, not who may run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from counters.checkpoints.model import IDLE, Checkpoint

NODE = "flush"
"""Operation of the rows that nodes keep: ``flush:<node>``."""

PENDING = "pending"
"""State of a node that has a batch to do again."""

BATCH, PENDING_SINCE = "batch", "pending_since"
"""Keys of such a node's cursor: which batch, and when its first attempt began."""


class Answer(StrEnum):
    """What follows."""

    PRUNE = "prune"
    """Delete what is older than the cutoff."""

    BLOCKED = "blocked"
    """Delete nothing."""

    OK = "ok"
    """There is nothing to delete."""


class Reason(StrEnum):
    """Why nothing may be deleted."""

    HEARTBEAT_STALE = "heartbeat_stale"
    """An idle node was not heard of since the cutoff: it may be down with a batch in hand."""

    PENDING_OLD = "pending_old"
    """A node has had a batch to do again since before the cutoff."""

    UNPARSEABLE_PENDING_SINCE = "unparseable_pending_since"
    """A node has a batch to do again, and does not say since when."""

    UNKNOWN_STATE = "unknown_state"
    """A node is neither idle nor pending."""

    NO_HEARTBEATS = "no_heartbeats"
    """There is something to delete, and no node to say whether it is still needed."""

    STORE_MISSING = "store_missing"
    """The rows of the nodes cannot be read."""


_WHY = {
    Reason.HEARTBEAT_STALE: "node {} was not heard of for longer than receipts are kept; "
    "let it retry once more, or forget it",
    Reason.PENDING_OLD: "node {} has had a batch to retry for longer than receipts are kept; "
    "let it succeed, or forget it",
    Reason.UNPARSEABLE_PENDING_SINCE: "node {} has a batch to retry and does not say since when; "
    "let it succeed, or forget it",
    Reason.UNKNOWN_STATE: "node {} is neither idle nor pending; let it retry once more, or forget it",
    Reason.NO_HEARTBEATS: "there are old receipts, but no node says whether it needs them; retry once",
    Reason.STORE_MISSING: "the checkpoints, which say what each node holds, cannot be read",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows, and if nothing may be deleted why, and because of which node.

    As text it is one line for an operator.
    """

    answer: Answer
    reason: Reason | None = None
    node: str | None = None

    def __str__(self) -> str:
        if self.reason is None:
            return str(self.answer)
        return f"{self.answer} ({self.reason}): {_WHY[self.reason].format(self.node)}"


def decide(rows: Sequence[Checkpoint] | None, cutoff: datetime, deletable: int) -> Verdict:
    """Whether what is older than ``cutoff`` may be deleted.

    A node without a row is not known, and does not block.

    Args:
        rows: those of nodes are looked at; None: they cannot be read.
        cutoff: by the clock that stamped the rows.
        deletable: how many receipts are older.
    """
    if rows is None:
        return Verdict(Answer.BLOCKED, Reason.STORE_MISSING)
    nodes = 0
    for row in rows:
        operation, _, node = row.name.partition(":")
        if operation != NODE:
            continue
        nodes += 1
        reason = _objection(row, cutoff)
        if reason is not None:
            return Verdict(Answer.BLOCKED, reason, node)
    if not deletable:
        return Verdict(Answer.OK)
    return Verdict(Answer.PRUNE) if nodes else Verdict(Answer.BLOCKED, Reason.NO_HEARTBEATS)


def _objection(row: Checkpoint, cutoff: datetime) -> Reason | None:
    """Why the node does not prove that it holds no batch from before the cutoff; None: it does.

    What the node wrote itself counts: pausing and resuming its row touch ``updated_at`` and, with that, the
    state, but neither the heartbeat nor the cursor.
    """
    if row.observed not in (IDLE, PENDING):
        return Reason.UNKNOWN_STATE
    if row.observed == PENDING or PENDING_SINCE in row.position:
        since = _moment(row.position.get(PENDING_SINCE))
        if since is None:
            return Reason.UNPARSEABLE_PENDING_SINCE
        return None if since > cutoff else Reason.PENDING_OLD
    return None if row.heartbeat_at is not None and row.heartbeat_at > cutoff else Reason.HEARTBEAT_STALE


def _moment(text: object) -> datetime | None:
    """A date with its offset from UTC; None if it is something else."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else moment
