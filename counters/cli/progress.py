"""How far a piece of work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

PLAIN_EVERY = 5.0
"""Seconds between two lines of progress where there is no terminal."""

WINDOW = 60.0
"""Seconds that a rate is about."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How far it is.

    Attributes:
        done: of ``total``, in whatever unit.
        total: None: not known (yet).
        items: what this run did, for the rate.
    """

    done: int
    total: int | None
    items: int


Show = Callable[[Amount], None]


class Display(Protocol):
    """Shows several pieces of work, one after the other."""

    def start(self, title: str, unit: str) -> Show:
        """Begin with one; the result is called with how far it is."""


@contextmanager
def display() -> Iterator[Display]:
    """A display on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineDisplay()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[pace]}", markup=False),
    )
    plain = sys.stderr
    with Progress(*columns, console=console) as bar, _logging_to(sys.stderr, instead_of=plain):
        yield BarDisplay(bar)


@contextmanager
def _logging_to(stream: TextIO, *, instead_of: TextIO) -> Iterator[None]:
    """Have log records appear above the bar, like everything else, not within it."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is instead_of
    ]
    for handler in handlers:
        handler.setStream(stream)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(instead_of)


def say(line: str) -> None:
    """Tell people something while work is shown: above the bar, if there is one.

    Not by click, which looks up the file behind what a bar has put in the place of standard error.
    """
    print(line, file=sys.stderr, flush=True)


class BarDisplay:
    """One bar per piece of work."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def start(self, title: str, unit: str) -> Show:
        """Begin with a bar."""
        task = self._bar.add_task(title, total=None, pace="")
        pace = Pace(unit)

        def show(amount: Amount) -> None:
            self._bar.update(task, completed=_shown(amount), total=amount.total, pace=pace.of(amount))

        return show


class LineDisplay:
    """A line now and then, for logs and pipes."""

    def start(self, title: str, unit: str) -> Show:
        """Begin with a title."""
        pace = Pace(unit)
        last: float | None = None

        def show(amount: Amount) -> None:
            nonlocal last
            now = time.monotonic()
            if last is None or amount.done == amount.total or now - last >= PLAIN_EVERY:
                last = now
                say(f"{title}: {pace.of(amount)}")

        return show


class Pace:
    """Rate and time left, by what was done in the last minute: a task may have been paused before, and begin
    where an earlier run stopped."""

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._clock = clock
        self._seen: deque[tuple[float, Amount | None]] = deque([(clock(), None)])

    def of(self, amount: Amount) -> str:
        """In words: ``1,200 of 3,000 objects, 600/s, 3 s left``."""
        now = self._clock()
        self._seen.append((now, amount))
        while len(self._seen) > 2 and self._seen[0][0] < now - WINDOW:
            self._seen.popleft()
        if amount.total is None and not amount.items:
            return f"listing {self._unit}"
        began, before = self._seen[0]
        elapsed = max(now - began, 1e-3)
        items = amount.items - (before.items if before else 0)
        words = [self._amount(amount)]
        if items:
            words.append(f"{items / elapsed:,.0f}/s")
        if left := self._left(amount):
            words.append(f"{left} left")
        return ", ".join(words)

    def _amount(self, amount: Amount) -> str:
        if amount.total is None:
            return f"{amount.items:,} {self._unit}"
        if amount.items == amount.done > 0:  # else the total is of something else, such as bytes
            return f"{amount.done:,} of {amount.total:,} {self._unit}"
        return f"{amount.items:,} {self._unit} ({_percent(amount.done, amount.total)})"

    def _left(self, amount: Amount) -> str:
        """By the earliest amount of which it is known how far it was."""
        began, before = next((at, seen) for at, seen in self._seen if seen is not None)
        moved = amount.done - before.done
        if amount.total is None or moved <= 0 or amount.done >= amount.total:
            return ""
        return _duration((amount.total - amount.done) * (self._seen[-1][0] - began) / moved)


def _percent(done: int, total: int) -> str:
    return f"{min(100, max(0, 100 * done / total)):.0f} %" if total else "100 %"


def _shown(amount: Amount) -> int:
    """What is done, within what there is."""
    return max(0, amount.done if amount.total is None else min(amount.done, amount.total))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
