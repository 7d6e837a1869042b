"""The one place where SQL engines are made, and how they are written to: SQLite and PostgreSQL, one code.

Nothing is tried again here: a failed call fails at once and the caller, who knows what may be repeated,
decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import URL, BigInteger, Connection, Engine, Table, create_engine, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from counters.errors import SettingsError, StoreError, StoreUnavailable

_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}

_SECRET = re.compile(r"([?&][^=&]*(?:password|secret|key)[^=&]*=)[^&]*", re.IGNORECASE)

_UNDEFINED_TABLE = "42P01"


class MissingTable(StoreError):
    """The database has no table of that name."""


class clock(FunctionElement[int]):
    """Microseconds since the epoch by the database's clock, at the statement (not at the transaction)."""

    type = BigInteger()
    inherit_cache = True
    name = "clock"


@compiles(clock, "postgresql")
def _clock_of_postgresql(_element: clock, _compiler: Any, **_options: Any) -> str:
    return "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)"


@compiles(clock, "sqlite")
def _clock_of_sqlite(_element: clock, _compiler: Any, **_options: Any) -> str:
    # both halves see the same moment: SQLite reads its clock once per statement
    return (
        "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
    )


def connect(url: str, timeout: float = 10.0) -> Engine:
    """An engine for ``sqlite:///file`` or ``postgresql://user@host/database``. Connects when first used.

    Args:
        timeout: seconds to wait for a connection, for a lock of another writer (SQLite), and for a silent
            network (PostgreSQL).

    Raises:
        SettingsError: the URL is wrong; the message shows no part of it that may be secret.
    """
    try:
        parsed = make_url(url)
        driver = _DRIVERS.get(parsed.drivername, parsed.drivername)
    except (ArgumentError, ValueError):
        raise SettingsError("the database URL is wrong; write it like sqlite:///file.db") from None
    if driver not in _DRIVERS.values():
        raise SettingsError(f"the database is {parsed.drivername}; it must be sqlite or postgresql")
    options = _patience(driver, timeout)
    given = {name: value for name, value in options.items() if name not in parsed.query}
    try:
        return create_engine(parsed.set(drivername=driver), connect_args=given, pool_pre_ping=True)
    except (SQLAlchemyError, ImportError, TypeError, ValueError) as error:
        raise SettingsError(f"the database URL {mask_url(parsed)} is wrong: {error}") from None


def mask_url(url: URL) -> str:
    """The URL with every secret in it replaced by ``***``."""
    return _SECRET.sub(r"\1***", url.render_as_string(hide_password=True))


@contextmanager
def answering(engine: Engine) -> Iterator[None]:
    """For the length of a call.

    Raises:
        MissingTable: the database was not prepared for it.
        StoreError: the database refuses it.
        StoreUnavailable: the database does not answer, or cannot now.
    """
    try:
        yield
    except PoolTimeout as error:
        raise StoreUnavailable(f"{mask_url(engine.url)} has no free connection: {error}") from error
    except DBAPIError as error:
        text = f"{mask_url(engine.url)}: {reason(engine, error)}"
        if _lacks_table(error):  # before all else: SQLite has one error for this and for being busy
            raise MissingTable(f"the database was not prepared: {text}") from error
        if error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
            raise StoreUnavailable(f"the database does not answer: {text}") from error
        raise StoreError(f"the database refuses: {text}") from error


def reason(engine: Engine, error: BaseException) -> str:
    """What the database said, in one line and without the password of the engine."""
    said = str(getattr(error, "orig", None) or error).strip()
    line = said.splitlines()[0] if said else type(error).__name__
    password = engine.url.password
    return line.replace(password, "***") if password else line


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes; committed at its end, rolled back when something raises.

    On SQLite it waits for other writers at its beginning: one that has read first could not wait any more.
    """
    with engine.connect() as connection, connection.begin():
        begin(connection)
        yield connection


def begin(connection: Connection) -> None:
    """Have SQLite begin the transaction as a writer; Python's driver would do so at the first write only.

    Nothing where it has begun, and nothing on PostgreSQL.
    """
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def insert(connection: Connection, table: Table) -> postgresql.Insert:
    """An INSERT that knows ``ON CONFLICT``, which both databases spell alike."""
    if connection.dialect.name == "sqlite":
        return cast(postgresql.Insert, sqlite.insert(table))
    return postgresql.insert(table)


def _patience(driver: str, timeout: float) -> dict[str, Any]:
    if driver.startswith("sqlite"):
        return {"timeout": timeout}
    seconds = max(1, math.ceil(timeout))
    return {
        "connect_timeout": max(2, seconds),  # libpq takes no less
        "keepalives_idle": seconds,
        "keepalives_interval": max(1, seconds // 3),
        "keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
    }


def _lacks_table(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE or "no such table" in str(error.orig)
