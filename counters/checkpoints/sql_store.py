"""Checkpoints in SQL, beside the work they are about. SQLite and PostgreSQL, one code.

Every write is one statement. On a condition (the claim, the cursor the batch began from) it is a transaction
that locks what it compared, so that nobody comes between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, delete, select, update

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import (
    ABSENT,
    DAMAGED,
    IDLE,
    NO_POSITION,
    RUNNING,
    Absent,
    Advance,
    Checkpoint,
    ClaimLost,
    Counts,
    Cursor,
    CursorMoved,
    Desired,
    Fence,
    NotFound,
    check_advance,
    check_name,
    decode_map,
    encode_counts,
    encode_cursor,
    instant,
    runner,
    wanted,
)
from counters.checkpoints.sql_claim import holder_of, take
from counters.checkpoints.sql_tables import CHECKPOINTS, CLAIMS, create_schema
from counters.errors import StoreError
from counters.sql import MissingTable, answering, begin, clock, insert, mask_url, writing

__all__ = ["SqlCheckpoints", "create_schema"]

_ROW: Final = CHECKPOINTS.c

Values = dict[str, Any]
"""What to write, by column; some are expressions."""


class SqlCheckpoints:
    """The :class:`~counters.checkpoints.store.Checkpoints` of one database.

    A database without the tables (see :func:`create_schema`) has no checkpoints.
    """

    def __init__(self, engine: Engine, *, transaction: Connection | None = None) -> None:
        self._engine = engine
        self._transaction = transaction

    def within(self, connection: Connection) -> SqlCheckpoints:
        """The same checkpoints, written in the transaction of the work on ``connection``: they are kept if it
        is committed, and gone if it is rolled back, as it must be when a write is refused.

        On SQLite the transaction is one of :func:`counters.sql.writing`, or has not begun.
        """
        return SqlCheckpoints(self._engine, transaction=connection)

    def get(self, name: str) -> Checkpoint | None:
        rows = self._select(check_name(name))
        return _checkpoint(rows[0]) if rows else None

    def list(self) -> list[Checkpoint]:
        # sorted here: how a database orders text is a setting of its own
        return sorted((_checkpoint_or_damage(row) for row in self._select()), key=lambda row: row.name)

    def put(
        self, name: str, cursor: Cursor | None, counts: Counts, state: str, *, fence: Fence | None = None
    ) -> None:
        values = _given(cursor, counts, state)
        with self._writing(name, fence) as connection:
            _upsert(connection, name, values)

    def advance(
        self,
        name: str,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        *,
        fence: Fence | None = None,
    ) -> None:
        check_advance(cursor, counts)
        self.apply(Advance(name, cursor, counts, fence=fence))

    def apply(self, advance: Advance) -> None:
        name, expected = advance.name, advance.expected
        values = _given(advance.cursor, advance.counts, ABSENT)
        if advance.runner:
            values |= _beat(advance.runner)
        added = {"ok": advance.ok, "failed": advance.failed}
        with self._writing(name, advance.fence) as connection:
            # a row that is missing has no position
            write = _upsert if expected in (None, NO_POSITION) else _update
            written = write(connection, name, values, added, expected)
            if not written:
                raise CursorMoved(
                    f"the cursor of {name} was moved since the batch began; nothing was written"
                )

    def update(
        self,
        name: str,
        *,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        state: str | Absent = ABSENT,
        fence: Fence | None = None,
    ) -> None:
        self._update(name, _given(cursor, counts, state), fence)

    def heartbeat(self, name: str, runner_: str | None = None, *, fence: Fence | None = None) -> None:
        self._update(name, _beat(runner_ or runner()), fence)

    def delete(self, name: str) -> bool:
        with self._writing(name) as connection:
            return connection.execute(delete(CHECKPOINTS).where(_ROW.name == name)).rowcount > 0

    def pause(self, name: str) -> None:
        with self._writing(name) as connection:
            _upsert(connection, name, {"desired": Desired.PAUSED.value, "desired_at": clock()})

    def resume(self, name: str) -> None:
        values = {"desired": Desired.RUN.value, "desired_at": clock(), "observed": IDLE}
        with self._writing(name) as connection:
            _upsert(connection, name, values)

    def paused(self, name: str) -> bool:
        row = self.get(name)
        return row is not None and row.desired is Desired.PAUSED

    def claim(self, name: str, runner_: str | None = None) -> Claim:
        check_name(name)
        with self._missing_is_an_error():
            return take(self._engine, name, runner_ or runner())

    def holder(self, name: str) -> str | None:
        return holder_of(self._engine, check_name(name))

    def now(self) -> datetime:
        with self._connection() as connection:
            return instant(connection.execute(select(clock())).scalar_one())

    def _select(self, name: str | None = None) -> Sequence[Row[Any]]:
        query = select(CHECKPOINTS)
        if name is not None:
            query = query.where(_ROW.name == name)
        try:
            with self._connection() as connection:
                return connection.execute(query).all()
        except MissingTable:
            return []

    def _update(self, name: str, values: Values, fence: Fence | None) -> None:
        with self._writing(name, fence) as connection:
            if not _update(connection, name, values):
                raise NotFound(
                    f"there is no checkpoint {name}; counters checkpoints list shows those there are"
                )

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """The one of the work, or one to read with."""
        with answering(self._engine):
            if self._transaction is not None:
                yield self._transaction
            else:
                with self._engine.connect() as connection:
                    yield connection

    @contextmanager
    def _writing(self, name: str, fence: Fence | None = None) -> Iterator[Connection]:
        """A transaction to write in, under the claim that ``fence`` is of."""
        check_name(name)
        with self._missing_is_an_error(), answering(self._engine):
            if self._transaction is not None:
                begin(self._transaction)
                _hold(self._transaction, name, fence)
                yield self._transaction
            else:
                with writing(self._engine) as connection:
                    _hold(connection, name, fence)
                    yield connection

    @contextmanager
    def _missing_is_an_error(self) -> Iterator[None]:
        try:
            yield
        except MissingTable as error:
            raise StoreError(
                f"{mask_url(self._engine.url)} has no tables for checkpoints; "
                "counters checkpoints create-tables makes them"
            ) from error


def _hold(connection: Connection, name: str, fence: Fence | None) -> None:
    """Keep the claim where it is until the end of the transaction.

    Raises:
        ClaimLost: it is not in force any more.
    """
    if fence is None:
        return
    claim = select(CLAIMS.c.epoch).where(CLAIMS.c.name == fence.key, CLAIMS.c.token == fence.token)
    # the lock makes the next holder, who writes this row, wait: it never reads what this is about to change
    if connection.execute(claim.with_for_update(read=True)).first() is None:
        raise ClaimLost(f"the claim on {name} went to another runner; nothing was written")


def _upsert(
    connection: Connection,
    name: str,
    values: Values,
    added: Values | None = None,
    expected: str | None = None,
) -> bool:
    """Write the row; whether that was done: not if there is one with another than the ``expected`` cursor."""
    values = values | {"updated_at": clock()}
    row = insert(connection, CHECKPOINTS).values(name=name, **values, **(added or {}))
    as_expected = None if expected is None else _ROW.cursor == expected
    written = row.on_conflict_do_update(
        index_elements=[_ROW.name], set_=values | _sums(added), where=as_expected
    )
    return connection.execute(written.returning(_ROW.name)).first() is not None


def _update(
    connection: Connection,
    name: str,
    values: Values,
    added: Values | None = None,
    expected: str | None = None,
) -> bool:
    """Write the row that is there; whether there was one, with the ``expected`` cursor."""
    change = update(CHECKPOINTS).where(_ROW.name == name)
    if expected is not None:
        change = change.where(_ROW.cursor == expected)
    return connection.execute(change.values(values | {"updated_at": clock()} | _sums(added))).rowcount > 0


def _sums(added: Values | None) -> Values:
    return {column: _ROW[column] + more for column, more in (added or {}).items()}


def _beat(by: str) -> Values:
    return {"runner": by, "heartbeat_at": clock(), "observed": RUNNING}


def _given(cursor: Cursor | Absent | None, counts: Counts | Absent, state: str | Absent) -> Values:
    values: Values = {}
    if not isinstance(cursor, Absent):
        values["cursor"] = encode_cursor(cursor)
    if not isinstance(counts, Absent):
        values["counts"] = encode_counts(counts)
    if not isinstance(state, Absent):
        desired, observed = wanted(state)
        if desired is not None:
            values |= {"desired": desired.value, "desired_at": clock()}
        if observed is not None:
            values["observed"] = observed
    return values


def _checkpoint(row: Sequence[Any]) -> Checkpoint:
    name, cursor, counts, desired, observed, updated_at, desired_at, heartbeat_at, by, ok, failed = row
    try:
        return Checkpoint(
            name=name,
            position=decode_map(name, "cursor", cursor),
            counts=decode_map(name, "counts", counts),
            desired=Desired.PAUSED if desired == Desired.PAUSED else Desired.RUN,
            observed=observed,
            updated_at=instant(updated_at),
            desired_at=None if desired_at is None else instant(desired_at),
            heartbeat_at=None if heartbeat_at is None else instant(heartbeat_at),
            runner=by,
            items={"ok": int(ok), "failed": int(failed)},
            token=cursor,
        )
    except (ValueError, OverflowError, TypeError) as error:
        raise StoreError(
            f"the checkpoint {name} in the database is damaged ({error}); counters checkpoints delete {name}"
        ) from error


def _checkpoint_or_damage(row: Row[Any]) -> Checkpoint:
    """The row; one that is damaged is shown as that, and does not hide the others."""
    try:
        return _checkpoint(row)
    except StoreError:
        return Checkpoint(row.name, {}, {}, Desired.RUN, DAMAGED, instant(0))
