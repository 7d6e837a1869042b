"""Runs a task in the foreground: claim, progress, pause, outages of the store, and signals.

- While the operator wants it paused, the process waits without the claim, unless it is told to leave.
- While the store does not answer, it waits and then goes on at the cursor that the store has.
- The first SIGINT or SIGTERM lets the batch in hand finish; the second ends the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol

import click

from counters.checkpoints.model import (
    AlreadyRunning,
    Checkpoint,
    ClaimLost,
    Cursor,
    Desired,
    NotFound,
)
from counters.checkpoints.runner import BatchEvent, Done, Outcome, Run, Turn, log_batch, run_batches
from counters.checkpoints.store import Checkpoints
from counters.cli.progress import Amount, Show, display, say
from counters.errors import StoreUnavailable
from journal_client.errors import Unavailable

PATIENCE = 600.0
"""Seconds without a single batch after which a store or broker that does not answer ends the task."""

RETRY = 1.0
"""Seconds between two attempts."""

LOOK = 0.5
"""Seconds between two looks whether a pause is over."""


class Task(Protocol):
    """A named piece of work that is done in batches."""

    @property
    def name(self) -> str:
        """Of its checkpoint."""

    @property
    def unit(self) -> str:
        """What its items are, in the plural."""

    def batch(self, turn: Turn) -> Done:
        """Do the next batch."""

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """How far that is, and of how much; None: not known."""


@dataclass(slots=True)
class Stopping:
    """Whether a signal has asked the process to end."""

    event: threading.Event

    def __call__(self) -> bool:
        return self.event.is_set()


def waits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the option ``--wait`` to a command that runs a task."""
    return click.option(
        "--wait/--no-wait",
        default=True,
        show_default=True,
        help="While the task is paused, wait until it is resumed; else exit.",
    )(command)


def run_task(store: Checkpoints, task: Task, *, wait: bool = True) -> Run:
    """Run ``task`` to its end, or until it is paused (unless ``wait``) or a signal comes.

    Returns:
        What came of it; the counts ``ok`` and ``failed`` are those of all that this process did.

    Raises:
        AlreadyRunning: another process does.
        StoreUnavailable, Unavailable: the store or the brokers did not answer at the start, or later for
            ``PATIENCE`` seconds.
        NotFound: the task was deleted while this waited for it to be resumed.
    """
    with _stop_on_signals() as stopping, display() as shown:
        follow = _Follow(task, shown.start(task.name, task.unit))
        outage = _Outage()
        while True:
            try:
                with store.claim(task.name) as claim:
                    follow.begin(store.get(task.name))
                    run = run_batches(
                        store,
                        task.name,
                        task.batch,
                        claim=claim,
                        max_batches=None,
                        on_batch=outage.over(follow),
                        stopping=stopping,
                    )
            except AlreadyRunning as error:
                outage.wait(error, stopping, expected=outage.began is not None)
            except (StoreUnavailable, Unavailable, ClaimLost) as error:
                outage.wait(error, stopping, expected=follow.begun)
            else:
                if run.outcome is not Outcome.PAUSED or not wait:
                    return follow.whole(run)
                _wait_for_resume(store, task.name, stopping)
            if stopping():
                return follow.whole(Run(Outcome.STOPPED, 0, {}))


def tell(task: str, run: Run, command: str) -> int:
    """Say how a run ended that did not complete; the exit code."""
    if run.outcome is Outcome.PAUSED:
        click.echo(f"{task} is paused; counters checkpoints resume {task}, then {command} goes on", err=True)
        return 0
    click.echo(f"{task} was stopped; {command} goes on where it stopped", err=True)
    return 130


class _Follow:
    """Shows the progress after each batch, and adds up what was done.

    Attributes:
        begun: whether the store ever answered.
    """

    def __init__(self, task: Task, show: Show) -> None:
        self.begun = False
        self._task = task
        self._show = show
        self._ok = self._failed = 0
        self._total: int | None = None

    def begin(self, row: Checkpoint | None) -> None:
        """Show from where it goes on."""
        self.begun = True
        self._show_at({} if row is None else row.position)

    def __call__(self, event: BatchEvent) -> None:
        log_batch(event)
        if event.error is not None:
            return
        self._ok += event.ok
        self._failed += event.failed
        if event.cursor is not None:
            self._show_at(event.cursor)
        else:
            total = self._items if self._total is None else self._total
            self._show(Amount(total, total, self._items))

    def whole(self, run: Run) -> Run:
        """``run`` with the counts of all that was done, however often it was interrupted."""
        return replace(run, counts={**run.counts, "ok": self._ok, "failed": self._failed})

    @property
    def _items(self) -> int:
        return self._ok + self._failed

    def _show_at(self, cursor: Cursor) -> None:
        done, self._total = self._task.progress(dict(cursor))
        if self._total is not None or self._items:
            self._show(Amount(done, self._total, self._items))


class _Outage:
    """A time in which store or brokers do not answer."""

    def __init__(self) -> None:
        self.began: float | None = None

    def over(self, follow: Callable[[BatchEvent], None]) -> Callable[[BatchEvent], None]:
        """``follow``, and the end of the outage with the first batch that is done."""

        def on_batch(event: BatchEvent) -> None:
            if event.error is None and self.began is not None:
                say("going on")
                self.began = None
            follow(event)

        return on_batch

    def wait(self, error: Exception, stopping: Stopping, *, expected: bool = True) -> None:
        """Wait before the next attempt.

        Raises:
            Exception: ``error``, if it is not what an outage brings, or has lasted too long.
        """
        if not expected:
            raise error
        now = time.monotonic()
        if self.began is None:
            say(f"waiting: {error}")
            self.began = now
        elif now - self.began > PATIENCE:
            raise error
        stopping.event.wait(RETRY)


def _wait_for_resume(store: Checkpoints, name: str, stopping: Stopping) -> None:
    say(f"{name} is paused; waiting for: counters checkpoints resume {name}")
    while not stopping.event.wait(LOOK):
        try:
            row = store.get(name)
        except StoreUnavailable:
            continue  # whoever resumes it has to wait, too
        if row is None:
            raise NotFound(f"{name} was deleted while it was paused; it does not go on")
        if row.desired is not Desired.PAUSED:
            say("going on")
            return


@contextmanager
def _stop_on_signals() -> Iterator[Stopping]:
    stopping = Stopping(threading.Event())

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stopping():
            raise KeyboardInterrupt
        stopping.event.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
