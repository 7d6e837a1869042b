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
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import click

from counters.checkpoints.model import AlreadyRunning, ClaimLost
from counters.checkpoints.runner import BatchEvent, Done, Outcome, Run, Turn, log_batch, run_batches
from counters.checkpoints.store import Checkpoints
from counters.cli.progress import Amount, Show, display
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

    Raises:
        AlreadyRunning: another process does.
        StoreUnavailable, Unavailable: the store or the brokers did not answer for ``PATIENCE`` seconds.
    """
    with _stop_on_signals() as stopping, display() as shown:
        follow = _Follow(task, shown.start(task.name, task.unit))
        outage = _Outage()
        while True:
            try:
                with store.claim(task.name) as claim:
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
                outage.wait(error, stopping)
            else:
                if run.outcome is not Outcome.PAUSED or not wait:
                    return run
                _wait_for_resume(store, task.name, stopping)
            if stopping():
                return Run(Outcome.STOPPED, 0, {})


def tell(task: str, run: Run, command: str) -> int:
    """Say how a run ended that did not complete; the exit code."""
    if run.outcome is Outcome.PAUSED:
        click.echo(f"{task} is paused; counters checkpoints resume {task}, then {command} goes on", err=True)
        return 0
    click.echo(f"{task} was stopped; {command} goes on where it stopped", err=True)
    return 130


class _Follow:
    """Shows the progress after each batch."""

    def __init__(self, task: Task, show: Show) -> None:
        self._task = task
        self._show = show
        self._items = 0

    def __call__(self, event: BatchEvent) -> None:
        log_batch(event)
        if event.error is not None:
            return
        self._items += event.ok + event.failed
        if event.cursor is not None:
            done, total = self._task.progress(dict(event.cursor))
            self._show(Amount(done, total, self._items))


class _Outage:
    """A time in which store or brokers do not answer."""

    def __init__(self) -> None:
        self.began: float | None = None

    def over(self, follow: Callable[[BatchEvent], None]) -> Callable[[BatchEvent], None]:
        """``follow``, and the end of the outage with the first batch that is done."""

        def on_batch(event: BatchEvent) -> None:
            if event.error is None and self.began is not None:
                click.echo("going on", err=True)
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
            click.echo(f"waiting: {error}", err=True)
            self.began = now
        elif now - self.began > PATIENCE:
            raise error
        stopping.event.wait(RETRY)


def _wait_for_resume(store: Checkpoints, name: str, stopping: Stopping) -> None:
    click.echo(f"{name} is paused; waiting for: counters checkpoints resume {name}", err=True)
    while not stopping.event.wait(LOOK):
        try:
            if not store.paused(name):
                return
        except StoreUnavailable:
            continue  # whoever resumes it has to wait, too


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
