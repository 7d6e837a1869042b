"""All tasks for many readers at the cost of one.

Who asks gets the last read if it is recent, else joins the one that is under way. A read happens on a thread
of its own, one at a time, only when somebody asks, and is followed by a rest in proportion to its length: a
hundred thousand rows cost a tenth of a core however many clients ask for them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeAlias

from counters.checkpoints.model import DAMAGED, Checkpoint
from counters.checkpoints.operations import Operations, is_system
from counters.errors import CountersError

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""Age up to which a read answers."""

REST = 9
"""How many times its own length a read answers for longer, if that is more."""

METRICS_WAIT = 0.25
"""Seconds that metrics wait for a read. Rows that take longer are those of the scrape before."""

METRICS_AGE = 120.0
"""Seconds up to which metrics show an older read while a new one is under way: two scrapes of a minute."""

EXPORTED = 200
"""Tasks that have metrics: those that were written to last."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows at one moment, arranged by whoever read them, so that answers take no time.

    Attributes:
        rows: ordered by name.
        by_state: the same of each state.
        exported: the tasks that have metrics.
        as_of: when they were read, by the store's clock.
    """

    rows: Sequence[Checkpoint]
    by_state: dict[str, list[Checkpoint]]
    exported: Sequence[Checkpoint]
    as_of: datetime

    @classmethod
    def of(cls, rows: Sequence[Checkpoint], as_of: datetime) -> Self:
        """``rows``, arranged."""
        by_state: dict[str, list[Checkpoint]] = {}
        for row in rows:
            by_state.setdefault(row.state, []).append(row)
        # A damaged row says nothing, perhaps not even its name.
        tasks = (row for row in rows if not is_system(row.name) and row.observed != DAMAGED)
        exported = heapq.nlargest(EXPORTED, tasks, key=lambda row: row.updated_at)
        return cls(rows, by_state, exported, as_of)

    @classmethod
    def read(cls, operations: Operations) -> Self:
        """What there is now; raises CountersError."""
        return cls.of(operations.list(), operations.now())

    def find(self, name: str) -> Checkpoint | None:
        """The row of that name."""
        at = bisect_left(self.rows, name, key=_name)
        return self.rows[at] if at < len(self.rows) and self.rows[at].name == name else None

    def page(self, state: str | None, after: str, limit: int) -> tuple[int, Sequence[Checkpoint]]:
        """How many rows are in ``state`` (None: any), and the first of them behind the name ``after``."""
        rows = self.rows if state is None else self.by_state.get(state, [])
        begin = bisect_right(rows, after, key=_name)
        return len(rows), rows[begin : begin + limit]


_Found: TypeAlias = Snapshot | CountersError
"""What a read ends with. An error that nobody asks a future for would be complained about."""


def _good(found: _Found) -> Snapshot:
    if isinstance(found, CountersError):
        raise found
    return found


def _name(row: Checkpoint) -> str:
    return row.name


class Snapshots:
    """Reads when asked. For any number of threads and event loops."""

    def __init__(self, read: Callable[[], Snapshot], fresh: float = FRESH_SECONDS) -> None:
        self._read = read
        self._fresh = fresh
        self._lock = threading.Lock()
        self._flight: Future[_Found] | None = None
        self._answers_until = 0.0
        self._last: tuple[float, Snapshot] | None = None
        self._problem: str | None = None

    async def current(self, seconds: float) -> Snapshot:
        """The rows as they were a moment ago.

        Raises:
            CountersError: what reading raised.
            TimeoutError: nothing came within ``seconds``.
        """
        flight = self._join()
        await asyncio.wait([asyncio.wrap_future(flight)], timeout=seconds)
        if not flight.done():
            raise TimeoutError
        return _good(flight.result())

    def exported(self, seconds: float = METRICS_WAIT) -> Sequence[Checkpoint] | None:
        """The tasks that have metrics; None where they cannot be read. Takes ``seconds`` at most."""
        flight = self._join()
        try:
            return _good(flight.result(seconds)).exported
        except NotYet:
            return self._recent()
        except CountersError:
            return None

    async def exported_soon(self, seconds: float = METRICS_WAIT) -> Sequence[Checkpoint] | None:
        """The same for an event loop."""
        try:
            return (await self.current(seconds)).exported
        except TimeoutError:
            return self._recent()
        except CountersError:
            return None

    def outdate(self) -> None:
        """Something was written: who asks from now on gets a read that begins from now on."""
        with self._lock:
            self._flight = None

    def _recent(self) -> Sequence[Checkpoint] | None:
        last = self._last
        return None if last is None or time.monotonic() - last[0] > METRICS_AGE else last[1].exported

    def _join(self) -> Future[_Found]:
        with self._lock:
            flight = self._flight
            if flight is None or (flight.done() and time.monotonic() >= self._answers_until):
                flight = self._flight = Future()
                flight.set_running_or_notify_cancel()  # who stops waiting does not cancel it for the others
                # A daemon: a read that hangs must not keep the process from ending.
                threading.Thread(target=self._fly, args=[flight], name="tasks", daemon=True).start()
            return flight

    def _fly(self, flight: Future[_Found]) -> None:
        began = time.monotonic()
        found = self._found()
        ended = time.monotonic()
        with self._lock:
            if self._flight is flight:
                self._answers_until = ended + max(self._fresh, REST * (ended - began))
            if isinstance(found, Snapshot):
                self._last = (began, found)
        flight.set_result(found)

    def _found(self) -> _Found:
        try:
            found = self._read()
        except CountersError as error:
            if str(error) != self._problem:
                logger.warning("the tasks could not be read: %s", error)
            self._problem = str(error)
            return error
        except Exception:
            logger.exception("reading the tasks failed")
            return CountersError("internal error; see the log")
        self._problem = None
        return found
