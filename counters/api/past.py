"""The shared history, looked for in the background, and its answers, made once per question."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

KEPT_BYTES = 16 << 20
"""Bytes of answers kept. The page asks for five ranges of at most 200 KiB and rounds them, so that its
readers ask the same; anybody may ask for something else, and that must not fill the memory."""

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
    """Which part of the history is wanted, and how finely. ``start`` and ``end`` are Unix seconds; without
    ``max_points`` every point is."""

    types: tuple[str, ...]
    start: int | None
    end: int | None
    max_points: int | None
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
    """Makes the answers in JSON, one after the other on a thread of its own, and keeps the last ones.

    Who asks for what is just being made waits for that, and however many different questions are asked at
    once, one is worked on. For one event loop.
    """

    def __init__(self, keep: int = KEPT_BYTES) -> None:
        self._keep = keep
        self._kept: OrderedDict[tuple[object, ...], Body] = OrderedDict()
        self._lock = threading.Lock()
        self._maker = ThreadPoolExecutor(1, "history-answers")

    @property
    def kept_bytes(self) -> int:
        """Memory that the kept answers take."""
        with self._lock:
            return sum(map(_size, self._kept.values()))

    async def json(self, history: History | None, question: Question) -> Body:
        """The answer to ``question``."""
        key = (history and history.version, question)
        body = self._look(key)
        if body is None:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(self._maker, self._make, key, history, question)
        return body

    def _look(self, key: tuple[object, ...]) -> Body | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _make(self, key: tuple[object, ...], history: History | None, question: Question) -> Body:
        body = self._look(key)  # it may have been made while this question waited
        if body is not None:
            return body
        series = {name: Points.of(one) for name, one in selected(history, question)}
        refreshed_at = None if history is None else history.refreshed_at
        content = HistoryBody(refreshed_at, history is None or history.stale, series)
        body = Body.of(msgspec.json.encode(content), "application/json")
        with self._lock:
            self._kept[key] = body
            size = sum(map(_size, self._kept.values()))
            while size > self._keep:
                size -= _size(self._kept.popitem(last=False)[1])
        return body


def _size(body: Body) -> int:
    return len(body.content) + len(body.packed or b"")


def tag(history: History | None, question: Question) -> str:
    """What tells the answer to ``question`` from others, without making it; every replica gives the same."""
    version = "none" if history is None else history.version
    return f'W/"{version}-{hashlib.blake2b(repr(question).encode(), digest_size=8).hexdigest()}"'


def selected(history: History | None, question: Question) -> Iterator[tuple[str, Series]]:
    """The series that are asked for, cut and thinned; empty where nothing is known."""
    for name in question.types:
        series = Series.of() if history is None else history.series.get(name, Series.of())
        part = clip(series, question.start, question.end)
        if question.max_points is not None:
            part = downsample(part, question.max_points, question.method)
        yield name, part
