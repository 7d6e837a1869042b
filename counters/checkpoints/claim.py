"""Exclusive claims on named work. No clock decides anything about them.

A claim is bound to a connection (Redis, PostgreSQL) or an open file (SQLite): it ends the moment that ends,
also with kill -9, and not before. A runner that is slow, frozen or wrong about the time still holds it.

Two things follow from that:

- A connection that is dead at one end only (a cable pulled) holds its claim until the server notices, which
  is up to its TCP keepalive. Others are excluded for too long then, never for too short.
- The holder may be cut off and not know it, while another takes over. So every claim has a number, its
  *epoch*, and every write made under it carries the claim's :class:`~counters.checkpoints.model.Fence`: the
  store refuses the write unless that claim is still the one in force.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from counters.checkpoints.model import Fence


class Claim(ABC):
    """A claim that is held; released at the end of a ``with`` block.

    Attributes:
        name: what is claimed.
        epoch: rises with every claim that is taken.
        fence: what writes under the claim carry.
    """

    def __init__(self, name: str, epoch: int, fence: Fence) -> None:
        self.name = name
        self.epoch = epoch
        self.fence = fence

    @abstractmethod
    def check(self) -> None:
        """Make sure that it is still held; keeps its connection from growing idle.

        Raises:
            ClaimLost: what held it is gone, or it went to another.
        """

    @abstractmethod
    def release(self) -> None:
        """Give it back. Never raises: where the store does not answer, the connection has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
