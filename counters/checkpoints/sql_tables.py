"""The tables of checkpoints and claims: the columns are the fields of a row in Redis.

Cursor and counts are JSON text, so that a cursor is compared as it was written; moments are microseconds by
the database's clock.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, text

from counters.checkpoints.model import Desired
from counters.sql import answering, clock, insert, writing

METADATA: Final = MetaData()

CHECKPOINTS: Final = Table(
    "checkpoints",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("cursor", Text, nullable=False, server_default="{}"),
    Column("counts", Text, nullable=False, server_default="{}"),
    Column("desired", Text, nullable=False, server_default=Desired.RUN.value),
    Column("observed", Text, nullable=False, server_default="idle"),
    Column("updated_at", BigInteger, nullable=False),
    Column("desired_at", BigInteger),
    Column("heartbeat_at", BigInteger),
    Column("runner", Text),
    Column("ok", BigInteger, nullable=False, server_default="0"),
    Column("failed", BigInteger, nullable=False, server_default="0"),
)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("token", Text, nullable=False),  # of the claim in force; '' after it was given back
)

SCHEMA: Final = "schema:core"
"""The row that says that the tables are there."""

NAMESPACE: Final = 0x636E7472
"""First half of every advisory lock: those of other programs in the same database have another one."""

_SCHEMA_LOCK = 0


def create_schema(engine: Engine) -> None:
    """Create the tables that are missing, and the row that tells so. Doing it again changes nothing.

    Raises:
        StoreUnavailable: the database does not answer.
        StoreError: it refuses.
    """
    with answering(engine):
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                # readers and a writer do not wait for each other; stays with the file
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        with writing(engine) as connection:
            if engine.dialect.name == "postgresql":
                # two at once would both find nothing
                connection.execute(text(f"SELECT pg_advisory_xact_lock({NAMESPACE}, {_SCHEMA_LOCK})"))
            METADATA.create_all(connection)
            row = insert(connection, CHECKPOINTS).values(name=SCHEMA, observed="applied", updated_at=clock())
            connection.execute(row.on_conflict_do_nothing())
