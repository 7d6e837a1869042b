"""A claim in PostgreSQL: an advisory lock of one session, which ends with its connection and not before.

The lock is named by two numbers: that of this product, and a hash of the name. Two names that hash alike
exclude each other; that is too much, and never too little.

The connection is the claim's own: it is taken out of the pool and is never opened again. It must reach the
server itself, or a pooler that gives every client its own session.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning, ClaimLost
from counters.checkpoints.sql_claim_row import ClaimRow, enter, give_back, in_force
from counters.checkpoints.sql_tables import NAMESPACE
from counters.sql import reason

KEEPALIVE: Final = {"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""Seconds, and probes, after which the server gives up a connection that is dead at the other end only, and
with it the claim. A time by which it is freed, not by which it is held."""

PATIENCE: Final = "1s"
"""For a write of the former holder that the server is just making."""

_LOCK_TIMEOUT = "55P03"

_PREFIX: Final = "counters "
"""Before the runner, in the name of the session."""

_HOLDER: Final = text(
    "SELECT activity.application_name, locks.pid FROM pg_locks AS locks"
    " LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid"
    " WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 2"
    " AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND CAST(locks.classid AS bigint) = :space AND CAST(locks.objid AS bigint) = :key"
)


class PostgresqlClaim(Claim):
    """A claim that is held, by a session of its own."""

    def __init__(self, connection: Connection, session: int, row: ClaimRow) -> None:
        super().__init__(row.name, row.epoch, row.fence)
        self._connection = connection
        self._session = session
        self._row = row

    def check(self) -> None:
        """Make sure that it is still held; keeps the connection from growing idle.

        Raises:
            ClaimLost: the session ended, or the claim went to another.
        """
        ended = f"the session that held the claim on {self.name} ended"
        if self._connection.closed or self._connection.invalidated:  # it would open another one
            raise ClaimLost(ended)
        try:
            session = self._connection.execute(select(func.pg_backend_pid())).scalar_one()
            held = in_force(self._connection, self._row)
        except SQLAlchemyError as error:
            raise ClaimLost(f"{ended}: {reason(self._connection.engine, error)}") from error
        if session != self._session:
            raise ClaimLost(f"{ended}: a pooler gave it another one; connect to the server itself")
        if not held:
            raise ClaimLost(f"the claim on {self.name} went to another runner")

    def release(self) -> None:
        """Give it back. Never raises: where the server does not answer, the session has ended."""
        with contextlib.suppress(SQLAlchemyError):
            if not self._connection.closed and not self._connection.invalidated:
                give_back(self._connection, self._row)
                # not left to the end of the session, which the server comes to know a moment later
                self._connection.execute(select(func.pg_advisory_unlock(NAMESPACE, lock_key(self.name))))
        with contextlib.suppress(SQLAlchemyError):
            self._connection.close()


def take(engine: Engine, name: str, runner: str) -> PostgresqlClaim:
    """Take the claim.

    Raises:
        AlreadyRunning: somebody holds it.
        SQLAlchemyError: what the database says otherwise.
    """
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.detach()
        settings = {"application_name": _PREFIX + runner, "lock_timeout": PATIENCE, **KEEPALIVE}
        connection.execute(select(*(func.set_config(key, value, False) for key, value in settings.items())))
        lock = func.pg_try_advisory_lock(NAMESPACE, lock_key(name))
        taken, session = connection.execute(select(lock, func.pg_backend_pid())).one()
        if not taken:
            raise AlreadyRunning(name, _holder(connection, name) or "another contender was faster")
        try:
            return PostgresqlClaim(connection, session, enter(connection, name))
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_TIMEOUT:
                raise
            raise AlreadyRunning(name, "a write of its former runner has not ended") from error
    except BaseException:
        connection.close()
        raise


def holder_of(engine: Engine, name: str) -> str | None:
    """Who holds the claim; None: nobody."""
    with engine.connect() as connection:
        return _holder(connection, name)


def lock_key(name: str) -> int:
    """The second half of the lock on ``name``: 32 bits, with a sign, the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big", signed=True)


def _holder(connection: Connection, name: str) -> str | None:
    key = {"space": NAMESPACE, "key": lock_key(name) & 0xFFFFFFFF}
    row = connection.execute(_HOLDER, key).first()
    if row is None:
        return None
    return f"{(row.application_name or 'unknown').removeprefix(_PREFIX)} (session {row.pid})"
