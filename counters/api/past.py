"""The shared history, looked for in the background, and its answers, made once per question."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec
import numpy as np

from counters.api.bodies import Body
from counters.errors import CountersError
from counters.history.series import Series, clip, downsample
from counters.history.store import History

logger = logging.getLogger(__name__)

KEPT_ANSWERS = 64
"""Answers kept; the page asks for five ranges, and rounds them so that its readers ask the same."""

JOIN_SECONDS = 2.0

Method = Literal["lttb", "minmax"]


class LoadsHistory(Protocol):
    """Where the shared history is."""

    def load(self, name: str = "default") -> History | None:
        """The last good history; None if there is none yet. Raises CountersError."""

    def version(self, name: str = "default") -> str | None:
        """The version of that history, at little cost."""


class LatestHistory:
    """The history as last published by whichever replica, kept in memory while this is entered.

    A new version is looked for every ``interval`` seconds, with one small command; only a new one is read.
    """

    def __init__(self, store: LoadsHistory | None, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._history: History | None = None
        self._problem: str | None = None
        self._looked = threading.Event()
        self._stop = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latest-history", daemon=True)

    @property
    def history(self) -> History | None:
        """The last good history; None if there is none. Answers at once."""
        return self._history

    def look_soon(self) -> None:
        """Look for a new version at once; does not wait for it."""
        self._due.set()

    def __enter__(self) -> Self:
        if self._store is not None:
            self._thread.start()
            # So that the first page has its figures; a store that hangs must not delay the start further.
            self._looked.wait(self._interval)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._due.set()
        if self._store is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._due.clear()
            self._look()
            self._looked.set()
            self._due.wait(self._interval)

    def _look(self) -> None:
        assert self._store is not None
        problem = None
        try:
            if self._history is None or self._store.version() != self._history.version:
                # A history that is gone stays: a store that was emptied is no reason to forget.
                self._history = self._store.load() or self._history
        except CountersError as error:
            problem = str(error)
        except Exception:
            # The thread must outlive a defect: without it the history would never change again.
            logger.exception("looking for a new history failed")
            problem = "internal error"
        if problem is not None and problem != self._problem:
            logger.warning("history: %s", problem)
        self._problem = problem


@dataclass(frozen=True, slots=True)
class Question:
    """Which part of the history is wanted, and how finely. ``start`` and ``end`` are Unix seconds."""

    types: tuple[str, ...]
    start: int | None
    end: int | None
    max_points: int
    method: Method


@dataclass(frozen=True, slots=True)
class Points:
    """One counter's history: ``values[i]`` objects at ``times[i]``, Unix seconds, in order."""

    times: list[int]
    values: list[int]

    @classmethod
    def of(cls, series: Series) -> Points:
        """The public form of ``series``: whole objects."""
        return cls(series.times.tolist(), np.rint(series.values).astype(np.int64).tolist())


@dataclass(frozen=True, slots=True)
class HistoryBody:
    """Points by counter. ``stale``: it could not be rebuilt when it should have been; the points still hold.

    ``refreshed_at`` is null before there is a history.
    """

    refreshed_at: datetime | None
    stale: bool
    series: dict[str, Points]


class HistoryAnswers:
    """Makes answers and keeps the last ones; safe to call from several threads."""

    def __init__(self, keep: int = KEPT_ANSWERS) -> None:
        self._keep = keep
        self._kept: OrderedDict[tuple[object, ...], Body] = OrderedDict()
        self._lock = threading.Lock()

    def json(self, history: History | None, question: Question) -> Body:
        """The answer as JSON."""

        def make() -> Body:
            series = {name: Points.of(one) for name, one in selected(history, question)}
            refreshed_at = None if history is None else history.refreshed_at
            body = HistoryBody(refreshed_at, history is None or history.stale, series)
            return Body.of(msgspec.json.encode(body), "application/json")

        return self._once(("json", history and history.version, question), make)

    def csv(self, history: History | None, question: Question, write: Callable[..., bytes]) -> Body:
        """The answer as a table, by ``write``."""

        def make() -> Body:
            return Body.of(write(selected(history, question)), "text/csv; charset=utf-8; header=present")

        return self._once(("csv", history and history.version, question), make)

    def _once(self, key: tuple[object, ...], make: Callable[[], Body]) -> Body:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        body = make()
        with self._lock:
            self._kept[key] = body
            while len(self._kept) > self._keep:
                self._kept.popitem(last=False)
        return body


def selected(history: History | None, question: Question) -> Iterable[tuple[str, Series]]:
    """The series that are asked for, cut and thinned; empty where nothing is known."""
    for name in question.types:
        series = Series.of() if history is None else history.series.get(name, Series.of())
        part = clip(series, question.start, question.end)
        yield name, downsample(part, question.max_points, question.method)
