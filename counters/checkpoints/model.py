"""What a checkpoint is: pure values and rules.

Words:

- A *task* is named ``<operation>:<scope>`` (``backfill:content``).
- Its *cursor* says where it goes on: a map of its own making, ``{}`` for "no position".
- Its *counts* say what the run did so far. Only the cursor spans runs.
- *Desired* is what the operator wants (run or paused), *observed* what the runner reports. Neither writes the
  other's, so a batch in flight cannot erase a pause.
- Its *state* is read from the two, and is a report: nothing is ever decided by it, by the age of
  ``updated_at`` or by that of the heartbeat. Who may run is decided by a claim.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from counters.errors import CountersError, InputError, StoreError

Cursor: TypeAlias = Mapping[str, Any]
"""Where a task goes on; anything JSON can say."""

Counts: TypeAlias = Mapping[str, Any]
"""What a run did so far; numbers add up from batch to batch."""

IDLE, RUNNING, PAUSED, DAMAGED = "idle", "running", "paused", "damaged"
"""States. A runner may report others; ``damaged`` is that of a row which cannot be read."""

HEARTBEAT_AT, RUNNER = "heartbeat_at", "runner"
"""Keys that a heartbeat adds to the cursor. They are no part of the position."""

_MAP = msgspec.json.Decoder(dict[str, Any])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NO_POSITION = "{}"
"""A position as it is stored where there is none, and what is compared where there is no row."""

MAX_NAME = 200
"""Characters of a name; it becomes part of keys."""

_NAME = re.compile(r"[a-z_]+:[A-Za-z0-9_.:-]+")

RESERVED = frozenset({"flush", "journal", "schema"})
"""Operations whose rows the system writes: an operator sees them and does not change them."""


class Absent(Enum):
    """Tells "leave it as it is" from None, which is a value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class Desired(StrEnum):
    """What the operator wants."""

    RUN = "run"
    PAUSED = "paused"


class NotFound(InputError):
    """There is no such checkpoint."""


class AlreadyRunning(CountersError):
    """Somebody else holds the claim.

    Attributes:
        holder: who, as far as it is known.
    """

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(f"{name} is already running: {holder}")
        self.holder = holder


class ClaimLost(CountersError):
    """The claim is not held any more; the write it was to protect did not happen."""


class CursorMoved(CountersError):
    """The cursor is not the one the batch began from; nothing was written."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """One row.

    Attributes:
        name: the task.
        position: the cursor without what a heartbeat adds to it.
        counts: what the last run did.
        desired: what the operator wants.
        observed: what the runner reported last (free text).
        updated_at: when the row was last written (UTC, the store's clock).
        desired_at: when the operator last paused or resumed; None: never.
        heartbeat_at: when a batch of the task was last recorded; None: never.
        runner: who did that.
        items: items of all runs together by result (``ok``, ``failed``).
        token: the position as it is stored, which a conditional write compares.
    """

    name: str
    position: dict[str, Any]
    counts: dict[str, Any]
    desired: Desired
    observed: str
    updated_at: datetime
    desired_at: datetime | None = None
    heartbeat_at: datetime | None = None
    runner: str | None = None
    items: dict[str, int] = {}
    token: str = NO_POSITION

    @property
    def state(self) -> str:
        """What the operator wants, if that is a pause; else what the runner reported."""
        return PAUSED if self.desired is Desired.PAUSED else self.observed

    @property
    def cursor(self) -> dict[str, Any]:
        """The position, and what the last heartbeat added to it."""
        cursor = dict(self.position)
        if self.heartbeat_at is not None:
            cursor[HEARTBEAT_AT] = self.heartbeat_at.isoformat()
            cursor[RUNNER] = self.runner
        return cursor

    @property
    def paused_since(self) -> datetime | None:
        """When the task was paused; None if it is not."""
        return self.desired_at if self.desired is Desired.PAUSED else None


@dataclass(frozen=True, slots=True)
class Fence:
    """What every write under a claim carries, so that a former holder's is refused.

    Attributes:
        key: where the store keeps the claim.
        token: what stands there while the claim is held; never the same twice.
    """

    key: str
    token: str


@dataclass(frozen=True, slots=True)
class Advance:
    """One write of progress. It never touches what the operator wants.

    Attributes:
        name: the task; its row is created where there is none.
        cursor: None: the scan reached its end; ABSENT: leave it.
        counts: ABSENT: leave them.
        expected: the token of the row the batch began from; the write is refused if the cursor has moved
            since. A row that is missing has no position. None: write in any case.
        fence: of the claim under which this is written; None: there is none.
        runner: who reports to be running, with the store's time: the heartbeat; None: nobody.
        ok: items done by this batch.
        failed: items it stepped over.
    """

    name: str
    cursor: Cursor | Absent | None = ABSENT
    counts: Counts | Absent = ABSENT
    expected: str | None = None
    fence: Fence | None = None
    runner: str | None = None
    ok: int = 0
    failed: int = 0


def is_name(name: str) -> bool:
    """Whether a task may be called that."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """``name``, if a task may be called that.

    Raises:
        InputError: it is not ``<operation>:<scope>``.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name of a task: it must be <operation>:<scope>, lower-case letters and then "
            "letters, digits and _ . : -, like backfill:content"
        )
    if len(name) > MAX_NAME:
        raise InputError(f"the name of a task has {len(name)} characters, not up to {MAX_NAME}")
    return name


def check_operable(name: str) -> str:
    """``name``, if an operator may change the task of that name.

    Raises:
        InputError: it is no name of a task, or the system writes its row.
    """
    operation = check_name(name).partition(":")[0]
    if operation in RESERVED:
        raise InputError(f"{name} is written by the system; it can be shown, not changed")
    return name


def scope(text: str) -> str:
    """``text`` as a part of a task's name: what may not be there becomes ``-``."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text) or "-"


def encode_cursor(cursor: Cursor | None) -> str:
    """The position as it is stored; None is stored as "no position".

    Raises:
        InputError: JSON cannot say it.
    """
    position = {key: value for key, value in (cursor or {}).items() if key not in (HEARTBEAT_AT, RUNNER)}
    return _encode("cursor", position)


def encode_counts(counts: Counts) -> str:
    """The counts as they are stored.

    Raises:
        InputError: JSON cannot say it.
    """
    return _encode("counts", dict(counts))


def decode_map(name: str, what: str, text: str | bytes) -> dict[str, Any]:
    """A cursor or counts as they are stored.

    Raises:
        StoreError: they are something else.
    """
    try:
        return _MAP.decode(text or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"the {what} of {name} in the store are damaged ({error}); counters checkpoints delete {name}"
        ) from error


def wanted(state: str) -> tuple[Desired | None, str | None]:
    """What writing ``state`` sets: desired and observed; None leaves it.

    Only "paused" is the operator's. Writing anything else, as a runner does, leaves a pause alone: lifting it
    is what ``resume`` is for.
    """
    return (Desired.PAUSED, None) if state == PAUSED else (None, state)


def check_advance(cursor: Cursor | Absent | None, counts: Counts | Absent) -> None:
    """Progress says something.

    Raises:
        InputError: neither cursor nor counts are given.
    """
    if cursor is ABSENT and counts is ABSENT:
        raise InputError("neither a cursor nor counts are given; there is nothing to record")


def add_counts(counts: Counts, more: Counts) -> dict[str, Any]:
    """Numbers add up; of anything else the newer one stays."""
    total = dict(counts)
    for key, value in more.items():
        known = total.get(key)
        total[key] = known + value if _is_number(known) and _is_number(value) else value
    return total


def instant(microseconds: int | str | bytes) -> datetime:
    """A moment as stores keep it: microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=int(microseconds))


def runner() -> str:
    """This machine and process, for people who look for a stalled task. Nothing decides anything by it."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encode(what: str, value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise InputError(f"the {what} {value!r} cannot be written as JSON: {error}") from error
