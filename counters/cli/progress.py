"""How far a piece of work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

PLAIN_EVERY = 5.0
"""Seconds between two lines of progress where there is no terminal."""


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
    with Progress(*columns, console=console) as bar:
        yield BarDisplay(bar)


class BarDisplay:
    """One bar per piece of work."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def start(self, title: str, unit: str) -> Show:
        """Begin with a bar."""
        task = self._bar.add_task(title, total=None, pace="")
        pace = Pace(unit)

        def show(amount: Amount) -> None:
            self._bar.update(task, completed=amount.done, total=amount.total, pace=pace.of(amount))

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
                click.echo(f"{title}: {pace.of(amount)}", err=True)

        return show


class Pace:
    """Rate and time left, from the moment it was made."""

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._clock = clock
        self._began = clock()
        self._done_before: int | None = None

    def of(self, amount: Amount) -> str:
        """In words: ``1,200 of 3,000 objects, 600/s, 3 s left``."""
        if self._done_before is None:
            self._done_before = amount.done
        if amount.total is None and not amount.items:
            return f"listing {self._unit}"
        elapsed = max(self._clock() - self._began, 1e-3)
        words = [self._amount(amount)]
        if amount.items:
            words.append(f"{amount.items / elapsed:,.0f}/s")
        if left := self._left(amount, elapsed):
            words.append(f"{left} left")
        return ", ".join(words)

    def _amount(self, amount: Amount) -> str:
        if amount.total is None:
            return f"{amount.items:,} {self._unit}"
        if amount.items == amount.done:
            return f"{amount.done:,} of {amount.total:,} {self._unit}"
        return f"{amount.items:,} {self._unit} ({_percent(amount.done, amount.total)})"

    def _left(self, amount: Amount, elapsed: float) -> str:
        moved = amount.done - (self._done_before or 0)
        if amount.total is None or moved <= 0 or amount.done >= amount.total:
            return ""
        return _duration((amount.total - amount.done) * elapsed / moved)


def _percent(done: int, total: int) -> str:
    return f"{100 * done / total:.0f} %" if total else "100 %"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
