"""The row of a claim in SQL: its number, raised whenever it is taken, and what its holder's writes carry.

Whether somebody holds the claim is not decided by it, but by what ends with the holder: a session, or an open
file.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from counters.checkpoints.model import Fence
from counters.checkpoints.sql_tables import CLAIMS
from counters.sql import insert


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim that was taken."""

    name: str
    epoch: int
    token: str

    @property
    def fence(self) -> Fence:
        """What writes under the claim carry."""
        return Fence(self.name, self.token)


def enter(connection: Connection, name: str) -> ClaimRow:
    """Write that the claim on ``name`` was taken; refuses whatever the former holder writes from now on."""
    token = uuid.uuid4().hex
    claim = insert(connection, CLAIMS).values(name=name, epoch=1, token=token)
    taken = claim.on_conflict_do_update(
        index_elements=[CLAIMS.c.name], set_={"epoch": CLAIMS.c.epoch + 1, "token": token}
    )
    return ClaimRow(name, connection.execute(taken.returning(CLAIMS.c.epoch)).scalar_one(), token)


def in_force(connection: Connection, row: ClaimRow) -> bool:
    """Whether the claim was neither given back nor taken by another."""
    token = select(CLAIMS.c.token).where(CLAIMS.c.name == row.name)
    return connection.execute(token).scalar_one_or_none() == row.token


def give_back(connection: Connection, row: ClaimRow) -> None:
    """Write that nobody has the claim, unless another has."""
    mine = (CLAIMS.c.name == row.name) & (CLAIMS.c.token == row.token)
    connection.execute(update(CLAIMS).where(mine).values(token=""))
