"""What each node that retries batches says about itself, in a row ``flush:<node>``.

1. The first attempt looks for the row that an earlier process left, and makes one where there is none.
2. An attempt fails: the node is "pending", with the batch and when its *first* attempt began. That is what
   counts, since an attempt that failed may have had its effect and its receipt.
3. The next one succeeds: the node is "idle", and says so again at most once a minute.

A node does again what failed before it takes anything else. No write of its row ever fails the work: whatever
is missing there keeps receipts, and deletes none (:mod:`counters.checkpoints.veto`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from counters.checkpoints.model import IDLE, Advance, Cursor, NotFound, runner, scope
from counters.checkpoints.store import Checkpoints
from counters.checkpoints.veto import BATCH, NODE, PENDING, PENDING_SINCE

logger = logging.getLogger(__name__)

BEAT = 60.0
"""Seconds between two times that a node says to be idle: often enough for windows of a day or more."""


class Node:
    """One process that retries batches, one at a time, from one thread.

    Args:
        node: its name, which no other process has at the same time; what may not be in the name of a task
            becomes ``-``.
        monotonic: seconds, by a clock that nobody sets.
    """

    def __init__(
        self, checkpoints: Checkpoints, node: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = node_name(node)
        self._checkpoints = checkpoints
        self._monotonic = monotonic
        self._met = False
        """Whether the row of an earlier process was looked for."""
        self._stored: str | None = None
        """The state in the row, as far as it is known."""
        self._began: float | None = None
        """When the first attempt of a batch began that has failed since; None: there is none."""
        self._due = -float("inf")
        """When to say the next time that it is idle."""
        self._failing = False
        """Whether the last write failed."""

    @contextmanager
    def attempt(self, batch: str) -> Iterator[None]:
        """For the length of one attempt at ``batch``, which fails by raising."""
        began = self._monotonic()
        self._try(self._meet)
        try:
            yield
        except BaseException:  # an interrupt, too, leaves it unknown what was done
            self._failed(batch, began)
            raise
        self.idle()

    def idle(self) -> None:
        """There is no batch to do again: say so, unless that was said within the last minute."""
        self._began = None
        now = self._monotonic()
        if now >= self._due:
            self._due = now + BEAT
            self._try(lambda: self._write({}, IDLE))

    def _failed(self, batch: str, began: float) -> None:
        self._due = -float("inf")
        if self._began is None:
            self._began = began
        first = self._began

        def pend() -> None:
            self._meet()
            if self._stored != PENDING:
                # by the store's clock, also where it did not answer for long after the attempt began
                since = self._checkpoints.now() - timedelta(seconds=self._monotonic() - first)
                self._write({BATCH: batch, PENDING_SINCE: since.isoformat()}, PENDING)

        self._try(pend)

    def _meet(self) -> None:
        """Take over what an earlier process of this node left: since when it is pending stays."""
        if self._met:
            return
        row = self._checkpoints.get(self.name)
        if row is None:
            self._due = self._monotonic() + BEAT
            self._write({}, IDLE)
        else:
            self._stored = PENDING if PENDING_SINCE in row.position else row.observed
        self._met = True

    def _write(self, cursor: Cursor, state: str) -> None:
        """A heartbeat. If only its first half is written, the state is one that blocks."""
        self._stored = None
        self._checkpoints.apply(Advance(self.name, cursor, runner=runner()))
        self._checkpoints.update(self.name, state=state)
        self._stored = state

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            if not self._failing:
                logger.warning("the row %s could not be written: %s", self.name, error)
            self._failing = True
        else:
            self._failing = False


def node_name(node: str) -> str:
    """Name of the row of ``node``."""
    return f"{NODE}:{scope(node)}"


def forget_node(checkpoints: Checkpoints, node: str) -> None:
    """Remove the row of a node that will not come back: it no longer keeps receipts from being deleted.

    Raises:
        NotFound: there is no such node.
    """
    name = node_name(node)
    if not checkpoints.delete(name):
        raise NotFound(f"there is no node {node}: no checkpoint {name}; counters checkpoints list shows them")
    logger.warning("node forgotten: what it held may be counted twice if it comes back", extra={"task": name})
