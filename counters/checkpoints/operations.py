"""What an operator may see and do of all tasks, wherever their rows are.

Seeing is for every row, those of the system among them. Doing is for tasks: rows that the system writes are
refused, whatever would be done to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeGuard

import msgspec

from counters.checkpoints.model import (
    RESERVED,
    AlreadyRunning,
    Checkpoint,
    Cursor,
    Desired,
    NotFound,
    check_name,
    check_operable,
    instant,
)
from counters.checkpoints.store import Checkpoints
from counters.errors import InputError

MAX_CURSOR = 64 << 10
"""Bytes of a cursor that somebody types or sends."""

_NEVER = instant(0)
"""What stands for "not known" in ``updated_at``."""

_DONE, _TOTAL = "done", "total"


@dataclass(frozen=True, slots=True)
class Task:
    """One task. Moments are UTC by the store's clock.

    ``state`` is ``paused`` if the operator wants that (``desired``), else what the runner reported last
    (``observed``). ``progress`` is the part that is done, from 0 to 1, of tasks that know how much there is.
    ``heartbeat_at`` and ``runner``: when a batch was last recorded, and by whom. ``items`` are those of all
    runs, ``counts`` those of the last. What the ``system`` writes cannot be changed.
    """

    name: str
    state: str
    desired: Desired
    observed: str
    system: bool
    progress: float | None
    cursor: dict[str, Any]
    counts: dict[str, Any]
    items: dict[str, int]
    updated_at: datetime | None
    desired_at: datetime | None
    heartbeat_at: datetime | None
    runner: str | None

    @classmethod
    def of(cls, row: Checkpoint) -> Task:
        """The public form of ``row``."""
        return cls(
            name=row.name,
            state=row.state,
            desired=row.desired,
            observed=row.observed,
            system=is_system(row.name),
            progress=progress(row),
            cursor=row.position,
            counts=row.counts,
            items=row.items,
            updated_at=None if row.updated_at == _NEVER else row.updated_at,
            desired_at=row.desired_at,
            heartbeat_at=row.heartbeat_at,
            runner=row.runner,
        )


@dataclass(frozen=True, slots=True)
class TaskAlone(Task):
    """One task that was asked for alone. ``holder`` has the claim, that is, runs it now; null: nobody."""

    holder: str | None

    @classmethod
    def held_by(cls, row: Checkpoint, holder: str | None) -> TaskAlone:
        """The public form of ``row``."""
        task = Task.of(row)
        return cls(**{field.name: getattr(task, field.name) for field in fields(task)}, holder=holder)


class Operations:
    """Every task of some stores, and the rows that the system has elsewhere.

    Every method raises StoreUnavailable when a store does not answer, and InputError for what is no name of a
    task.

    Args:
        stores: a task that is in none of them and is paused gets its row in the first.
        system: rows that are kept in no store of checkpoints.
    """

    def __init__(
        self, stores: Sequence[Checkpoints], system: Callable[[], Iterable[Checkpoint]] = tuple
    ) -> None:
        self._stores = stores
        self._system = system

    def list(self) -> list[Checkpoint]:
        """Every row, ordered by name."""
        rows: dict[str, Checkpoint] = {}
        for found in (*(store.list() for store in self._stores), self._system()):
            for row in found:
                rows.setdefault(row.name, row)
        return [rows[name] for name in sorted(rows)]

    def show(self, name: str) -> TaskAlone:
        """One task.

        Raises:
            NotFound: there is no such row.
        """
        store = self._store_of(check_name(name))
        row = None if store is None else store.get(name)
        if row is None:
            row = next((row for row in self._system() if row.name == name), None)
        if row is None:
            raise missing(name)
        return TaskAlone.held_by(row, self.holder(name))

    def holder(self, name: str) -> str | None:
        """Who holds the claim on ``name``; None: nobody."""
        holders = (store.holder(name) for store in self._stores)
        return next((holder for holder in holders if holder is not None), None)

    def pause(self, name: str) -> None:
        """Have the task stop at its next batch, or not begin; its row is created where there is none."""
        (self._store_of(check_operable(name)) or self._stores[0]).pause(name)

    def resume(self, name: str) -> None:
        """Let the task run again, from where it is.

        Raises:
            NotFound: there is no such task.
        """
        self._known(name).resume(name)

    def rewind(self, name: str, cursor: Cursor | None = None) -> None:
        """Have the next batch start at ``cursor``; None: at the beginning. A run in progress goes on there.

        Raises:
            NotFound: there is no such task.
            InputError: JSON cannot say the cursor, or not briefly.
        """
        self._known(name).update(name, cursor=_checked(cursor))

    def delete(self, name: str, *, force: bool = False) -> bool:
        """Remove the row; whether there was one. That is also the way out of a damaged one.

        A run in progress would take the missing row for "from the beginning" and write a new one, so that
        nothing would be deleted but progress. Hence it is refused then, unless ``force``: for a holder that
        is cut off, whose claim lasts until the server notices.

        Raises:
            AlreadyRunning: somebody holds the claim.
        """
        check_operable(name)
        holder = None if force else self.holder(name)
        if holder is not None:
            raise AlreadyRunning(name, holder)
        found = [store.delete(name) for store in self._stores]
        return any(found)

    def now(self) -> datetime:
        """The clock by which the rows are stamped (UTC)."""
        return self._stores[0].now()

    def _store_of(self, name: str) -> Checkpoints | None:
        return next((store for store in self._stores if store.get(name) is not None), None)

    def _known(self, name: str) -> Checkpoints:
        store = self._store_of(check_operable(name))
        if store is None:
            raise missing(name)
        return store


def is_system(name: str) -> bool:
    """Whether the system writes the row of that name."""
    return name.partition(":")[0] in RESERVED


def missing(name: str) -> NotFound:
    """The error about a task that does not exist."""
    return NotFound(f"there is no task {name}; counters checkpoints list shows those there are")


def progress(row: Checkpoint) -> float | None:
    """The part that is done, from 0 to 1, of a task whose position or counts say ``done`` and ``total``."""
    for said in (row.position, row.counts):
        done, total = said.get(_DONE), said.get(_TOTAL)
        if _is_number(done) and _is_number(total) and total > 0:
            return min(1.0, max(0.0, done / total))
    return None


def read_cursor(text: str | bytes) -> dict[str, Any]:
    """A cursor as an operator writes it.

    Raises:
        InputError: it is no JSON object, or too long.
    """
    if len(text) > MAX_CURSOR:
        raise InputError(f"the cursor has {len(text)} bytes, not up to {MAX_CURSOR}")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f'the cursor must be a JSON object, like {{"done": 5}}: {error}') from error


def _checked(cursor: Cursor | None) -> Cursor | None:
    try:
        text = msgspec.json.encode(cursor)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the cursor cannot be written as JSON: {error}") from error
    if len(text) > MAX_CURSOR:
        raise InputError(f"the cursor has {len(text)} bytes, not up to {MAX_CURSOR}")
    return cursor


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
