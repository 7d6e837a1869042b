"""Claims beside checkpoints in SQL: on PostgreSQL held by a session, on SQLite by an open file."""

from __future__ import annotations

from sqlalchemy import Engine

from counters.checkpoints import file_claim, postgresql_claim
from counters.checkpoints.claim import Claim
from counters.sql import answering


def take(engine: Engine, name: str, runner: str) -> Claim:
    """Take the claim.

    Raises:
        AlreadyRunning: somebody holds it.
        StoreUnavailable: the database does not answer.
        StoreError: it refuses, or is one in memory.
    """
    with answering(engine):
        if engine.dialect.name == "postgresql":
            return postgresql_claim.take(engine, name, runner)
        return file_claim.take(engine, name, runner)


def holder_of(engine: Engine, name: str) -> str | None:
    """Who holds the claim; None: nobody.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with answering(engine):
        if engine.dialect.name == "postgresql":
            return postgresql_claim.holder_of(engine, name)
        return file_claim.holder_of(engine, name)
