"""The last good counts, read once per interval in the background whoever asks.

Requests never touch the store: a thousand viewers cost it as much as none, and a store that hangs delays no
answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol

from counters.errors import CountersError
from counters.objects.spec import Count

logger = logging.getLogger(__name__)

STALE_INTERVALS = 5
"""A read that takes longer than this many intervals makes the last value stale: the store hangs."""

JOIN_SECONDS = 2.0
"""How long closing waits for a read in flight; the thread is a daemon and has nothing to save."""


class ReadsCounts(Protocol):
    """Where counts come from."""

    def read(self) -> list[Count]:
        """All counters, ordered by name; raises CountersError if the store does not answer."""


@dataclass(frozen=True, slots=True)
class View:
    """What is known now.

    Attributes:
        counts: the last good counts by name; None before the first successful read.
        as_of: when they were read (UTC, the store's clock where it was told).
        age: seconds since they were read.
        stale: they could not be read again when they should have been.
        problem: why the last attempt failed; None if it did not.
        read_at: the monotonic clock at the last successful read.
        began_at: the same when that read began: whatever was written before is in it.
        errors: attempts that failed since the start.
    """

    counts: dict[str, Count] | None = None
    as_of: datetime | None = None
    age: float = 0.0
    stale: bool = True
    problem: str | None = "the counts were not read yet"
    read_at: float = 0.0
    began_at: float = 0.0
    errors: int = 0


class LatestCounts:
    """Reads the counts every ``interval`` seconds on a thread of its own while it is entered."""

    def __init__(self, reader: ReadsCounts, interval: float = 1.0) -> None:
        self._reader = reader
        self._interval = interval
        self._view = View()
        self._tried = threading.Event()
        self._stop = threading.Event()
        self._due = threading.Event()
        self._followers: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="latest-counts", daemon=True)

    def __enter__(self) -> LatestCounts:
        self._thread.start()
        # So that the first answer has numbers in it; a store that hangs must not delay the start further.
        self._tried.wait(self._interval)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._due.set()
        self._thread.join(JOIN_SECONDS)

    def view(self) -> View:
        """What is known now; answers at once."""
        view = self._view
        if view.counts is None:
            return view
        age = max(0.0, time.monotonic() - view.read_at)
        hangs = age > STALE_INTERVALS * self._interval
        problem = view.problem or ("the store does not answer" if hangs else None)
        return replace(view, age=age, stale=problem is not None, problem=problem)

    @contextmanager
    def following(self, announce: Callable[[], None]) -> Iterator[None]:
        """Has ``announce`` called, on the reading thread, after every attempt to read."""
        self._followers.append(announce)
        try:
            yield
        finally:
            self._followers.remove(announce)

    def read_soon(self) -> None:
        """Have the counts read at once and not at the end of the interval; does not wait for it."""
        self._due.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._due.clear()
            self._refresh()
            self._tried.set()
            for announce in list(self._followers):
                announce()
            self._due.wait(self._interval)

    def _refresh(self) -> None:
        began_at = time.monotonic()
        try:
            counts = self._reader.read()
        except CountersError as error:
            self._failed(str(error))
        except Exception:
            # The thread must outlive a defect: without it every later answer would be stale.
            logger.exception("reading the counts failed")
            self._failed("internal error; see the log")
        else:
            if self._view.problem is not None and self._view.errors:
                logger.info("the counts can be read again")
            self._view = View(
                counts={count.name: count for count in counts},
                as_of=counts[0].as_of if counts else datetime.now(UTC),
                stale=False,
                problem=None,
                read_at=time.monotonic(),
                began_at=began_at,
                errors=self._view.errors,
            )

    def _failed(self, problem: str) -> None:
        if problem != self._view.problem:
            logger.warning("%s", problem)
        self._view = replace(self._view, stale=True, problem=problem, errors=self._view.errors + 1)
