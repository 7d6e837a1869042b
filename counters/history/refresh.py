"""Rebuilds the history: asks the source, merges with what is known, and publishes the whole or nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning, ClaimLost
from counters.checkpoints.runner import Done, Turn, run_batches
from counters.checkpoints.runner import Outcome as Ended
from counters.config import HistorySettings
from counters.errors import CountersError, InputError, StoreUnavailable
from counters.history.files import read_file, write_file
from counters.history.series import Series, merge_all, thin
from counters.history.store import HistoryStore, task_of

logger = logging.getLogger(__name__)

PROMETHEUS_EVERY, SAMPLES_EVERY = 4 * 3600.0, 300.0
"""Seconds between two refreshes, unless ``history.refresh_every`` says otherwise."""

RETRY_SECONDS = 60.0
"""How soon a refresh that failed, or found nothing, is tried again; and how often to look if one is due."""

JOIN_SECONDS = 2.0
"""How long closing waits for a refresh in flight; it publishes all or nothing, and its claim ends with it."""


class Source(Protocol):
    """Where live points come from."""

    @property
    def name(self) -> str:
        """What operators call it."""

    @property
    def thins(self) -> bool:
        """Whether its points get fewer as they age; the history then does, too."""

    def fetch(self, now: int) -> Mapping[str, Series]:
        """All points up to ``now`` (Unix seconds) by counter; raises CountersError if some are missing."""


class Result(StrEnum):
    """How a refresh ended."""

    REFRESHED = "refreshed"
    """The history was rebuilt and published."""

    EMPTY = "empty"
    """There is no point yet."""

    BUSY = "busy"
    """Another refresh is running."""

    FAILED = "failed"
    """The history stays as it was."""

    PAUSED = "paused"
    """The operator paused it."""

    FRESH = "fresh"
    """It is not due."""


class RefreshBusy(CountersError):
    """Another refresh is running, or none may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a refresh did.

    Attributes:
        result: how it ended.
        problem: what went wrong: why it failed, or why the published history could not be exported too.
        counters: counters in the published history.
        points: points of all of them together.
        seconds: how long it took.
    """

    result: Result
    problem: str | None = None
    counters: int = 0
    points: int = 0
    seconds: float = 0.0


class Refresher:
    """Keeps one history fresh, from one source.

    Any number of refreshers, in any number of processes, may share a history: one at a time works on it, and
    none before it is due.
    """

    def __init__(
        self, store: HistoryStore, source: Source, settings: HistorySettings, name: str = "default"
    ) -> None:
        self._store = store
        self._source = source
        self._settings = settings
        self._name = name
        self._every = settings.refresh_every or (SAMPLES_EVERY if source.thins else PROMETHEUS_EVERY)
        self._told: str | None = None

    def refresh(self, *, allow_shrink: bool = False, if_due: bool = False) -> Outcome:
        """Rebuild the history now, or only ``if_due``: another server may just have done it.

        Every point published before stays, unless ``allow_shrink``: then the history is what the files and
        the source have now.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        outcomes: list[Outcome] = []

        def batch(_turn: Turn) -> Done:
            """The whole history is one batch; done again after a crash, it is the same."""
            outcomes.append(self._refresh(claim, allow_shrink))
            outcome = outcomes[-1]
            return Done(None, ok=outcome.points, failed=int(outcome.result is Result.FAILED))

        try:
            with self._store.claim(self._name) as claim:
                if if_due and self._due_in() > 0:
                    return Outcome(Result.FRESH)
                run = run_batches(
                    self._store.checkpoints, task_of(self._name), batch, claim=claim, max_batches=1
                )
        except AlreadyRunning:
            return Outcome(Result.BUSY)
        except ClaimLost as lost:
            return Outcome(Result.FAILED, str(lost))
        if run.outcome is Ended.PAUSED:
            task = task_of(self._name)
            return Outcome(Result.PAUSED, f"{task} is paused; counters checkpoints resume {task}")
        return outcomes[-1]

    def _refresh(self, claim: Claim, allow_shrink: bool) -> Outcome:
        began = time.monotonic()
        try:
            series = self._rebuilt(allow_shrink)
            if not series:
                return Outcome(Result.EMPTY, "neither the source nor history.static_files has a point yet")
            if not self._store.write(self._name, claim, series, self._every):
                raise ClaimLost("another refresh has taken over")
        except (StoreUnavailable, ClaimLost):
            raise
        except CountersError as error:
            return self._failed(claim, str(error))
        return Outcome(
            Result.REFRESHED,
            self._export(series),
            counters=len(series),
            points=sum(map(len, series.values())),
            seconds=time.monotonic() - began,
        )

    def refresh_on_request(self) -> str | None:
        """Rebuild the history now; what went wrong, None if nothing did.

        Raises:
            RefreshBusy: another refresh is running, which may have begun before what the request is about; or
                the operator paused it.
            StoreUnavailable: Redis does not answer.
        """
        outcome = self.refresh()
        if outcome.result is Result.BUSY:
            raise RefreshBusy("another refresh is running")
        if outcome.result is Result.PAUSED:
            raise RefreshBusy(outcome.problem)
        return outcome.problem

    def run(self, stop: threading.Event) -> None:
        """Refresh whenever it is due until ``stop`` is set; what goes wrong is logged."""
        while not stop.is_set():
            stop.wait(self._look())

    def _look(self) -> float:
        """Refresh if it is due; seconds until the next look."""
        try:
            due_in = self._due_in()
            if due_in > 0:
                return min(due_in, RETRY_SECONDS)
            outcome = self.refresh(if_due=True)
            self._tell(None if outcome.result is Result.EMPTY else outcome.problem)
        except CountersError as error:
            self._tell(str(error))
        except Exception:
            # The thread must outlive a defect, or the history would grow old unnoticed.
            logger.exception("refreshing the history failed")
        return min(self._every, RETRY_SECONDS)

    def _tell(self, problem: str | None) -> None:
        if problem is not None and problem != self._told:
            logger.warning("history: %s", problem)
        elif problem is None and self._told is not None:
            logger.info("history: it can be refreshed again")
        self._told = problem

    def _due_in(self) -> float:
        """Seconds until the next refresh, whoever did or tried the last one; 0: now."""
        state = self._store.state(self._name)
        if state.tried is None:
            return 0.0
        every = self._every if state.failure is None else min(self._every, RETRY_SECONDS)
        return max(0.0, every - (state.now - state.tried))

    def _rebuilt(self, allow_shrink: bool) -> dict[str, Series]:
        stored = {} if allow_shrink else self._stored()
        files = [read_file(path) for path in self._settings.static_files]
        now = int(self._store.state(self._name).now)
        live = self._source.fetch(now)
        known = merge_all(stored, live)
        if self._source.thins:
            known = {name: thin(series, now) for name, series in known.items()}
        # Of several points at one time the live one wins, then the one that was published.
        return merge_all(*files, known)

    def _stored(self) -> Mapping[str, Series]:
        history = self._store.load(self._name)
        return {} if history is None else history.series

    def _failed(self, claim: Claim, problem: str) -> Outcome:
        self._store.fail(self._name, claim, problem)
        return Outcome(Result.FAILED, problem)

    def _export(self, series: Mapping[str, Series]) -> str | None:
        """Write the file that the settings ask for; why that failed."""
        path = self._settings.export_file
        if path is None:
            return None
        try:
            write_file(path, series)
        except InputError as error:
            return f"{error}; check history.export_file"
        return None


class Runs(Protocol):
    """Something that goes on until it is told to stop."""

    def run(self, stop: threading.Event) -> None:
        """Go on until ``stop`` is set."""


class Background:
    """Runs things that take an event to stop on, each on a thread of its own, while it is entered."""

    def __init__(self, *runs: Runs) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=one.run, args=[self._stop], name=type(one).__name__, daemon=True)
            for one in runs
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
