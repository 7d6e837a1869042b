"""A claim beside a SQLite database: the lock on an open file, which ends with the process and not before.

``<database>.claims/<hash of the name>.lock`` is locked (``flock``) by its holder, who writes into it who that
is. The file stays when the claim ends, so that nobody locks one that is not there any more. A process forked
from the holder holds the claim as well. The file system must be local, as SQLite asks of it anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning, ClaimLost
from counters.checkpoints.sql_claim_row import ClaimRow, enter, give_back, in_force
from counters.errors import StoreError, StoreUnavailable
from counters.sql import reason, writing

_LONGEST = 1_000
"""Bytes of a holder that are read."""


class FileClaim(Claim):
    """A claim that is held, by a file of its own."""

    def __init__(self, engine: Engine, path: Path, file: int, row: ClaimRow) -> None:
        super().__init__(row.name, row.epoch, row.fence)
        self._engine = engine
        self._path = path
        self._file: int | None = file
        self._row = row

    def check(self) -> None:
        """Make sure that it is still held.

        Raises:
            ClaimLost: the file was replaced, or the claim went to another.
        """
        if self._file is None or not _is_at(self._file, self._path):
            raise ClaimLost(f"the file that held the claim on {self.name} is gone: {self._path}")
        try:
            with self._engine.connect() as connection:
                held = in_force(connection, self._row)
        except SQLAlchemyError as error:
            lost = f"the claim on {self.name} is lost: {reason(self._engine, error)}"
            raise ClaimLost(lost) from error
        if not held:
            raise ClaimLost(f"the claim on {self.name} went to another runner")

    def release(self) -> None:
        """Give it back. Never raises: the file is closed in any case."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(SQLAlchemyError), writing(self._engine) as connection:
            give_back(connection, self._row)
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
        os.close(file)


def take(engine: Engine, name: str, runner: str) -> FileClaim:
    """Take the claim.

    Raises:
        AlreadyRunning: somebody holds it.
        StoreError: the database is in memory, where nobody else sees it.
        StoreUnavailable: the file cannot be written.
        SQLAlchemyError: what the database says.
    """
    path = _path(engine, name)
    try:
        path.parent.mkdir(exist_ok=True)
        file = _lock(path)
    except OSError as error:
        raise StoreUnavailable(f"the claim on {name} cannot be written: {error}") from error
    if file is None:
        raise AlreadyRunning(name, _read(path) or "another contender was faster")
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, runner.encode(errors="replace"), 0)
        with writing(engine) as connection:
            return FileClaim(engine, path, file, enter(connection, name))
    except BaseException:
        os.close(file)
        raise


def holder_of(engine: Engine, name: str) -> str | None:
    """Who holds the claim; None: nobody."""
    path = _path(engine, name)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if not _flock(file.fileno(), fcntl.LOCK_SH):
            return _read(path) or "unknown"
    return None


def _lock(path: Path) -> int | None:
    """The file, locked; None where somebody else has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if _flock(file, fcntl.LOCK_EX):
            if _is_at(file, path):
                return file
        elif not _flock(file, fcntl.LOCK_SH):
            os.close(file)
            return None
        # It was replaced, or somebody only looks who has it: a shared lock, for an instant.
        os.close(file)


def _flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether ``file`` is what stands at ``path``, not one that was there before."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()[:_LONGEST].decode(errors="replace")
    return ""


def _path(engine: Engine, name: str) -> Path:
    with engine.connect() as connection:
        database = connection.exec_driver_sql("PRAGMA database_list").one()[2]
    if not database:
        raise StoreError("a database in memory has no claims: nobody else could see them; name a file")
    return Path(f"{database}.claims") / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
