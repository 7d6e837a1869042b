"""``counters load``: publish the objects of a real source to the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from counters.config import Settings
from counters.load import LoadReport, Progress, Repository, load_repository
from counters.load.objects import OBJECT_TYPES
from journal_client.writer import PRODUCER_DEFAULTS, JournalWriter

PLAIN_EVERY = 5.0
"""Seconds between two lines of progress where there is no terminal."""

FRAMING = 1_024
"""Bytes of a record that the journal adds to key and value, at most."""

Show = Callable[[Progress], None]


@click.group()
def load() -> None:
    """Publish the objects of a source to the journal."""


@load.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--brokers", help="Kafka bootstrap servers; overrides journal.brokers.")
@click.option("--prefix", help="Topics are named <prefix>.<object type>; overrides journal.prefix.")
@click.option("--origin", metavar="URL", help="Origin to publish for a single PATH instead of its own.")
@click.pass_obj
def git(
    settings: Settings, paths: tuple[Path, ...], brokers: str | None, prefix: str | None, origin: str | None
) -> None:
    """Publish contents, directories, revisions, releases, snapshot and origin of git repositories.

    Loading a repository again changes no count.
    """
    if origin is not None and len(paths) > 1:
        raise click.UsageError(f"--origin names the origin of one repository, and {len(paths)} were given")
    for path in paths:
        Repository.open(path)  # nothing is sent if one of them is wrong
    journal = settings.journal
    limit = int(journal.kafka.get("message.max.bytes", PRODUCER_DEFAULTS["message.max.bytes"])) - FRAMING
    with (
        JournalWriter(brokers or journal.brokers, prefix or journal.prefix, kafka=journal.kafka) as writer,
        _display() as display,
    ):
        reports = [
            load_repository(path, writer, origin=origin, max_bytes=limit, progress=display.start(path))
            for path in paths
        ]
    _print_summary(list(zip(paths, reports, strict=True)))


class Display(Protocol):
    """Shows how far the repositories are."""

    def start(self, path: Path) -> Show:
        """Begin with a repository; the result is called with its progress."""


class BarDisplay:
    """One bar per repository."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def start(self, path: Path) -> Show:
        task = self._bar.add_task(str(path), total=None, rate="listing")
        started = time.monotonic()

        def show(progress: Progress) -> None:
            rate = _rate(progress, started)
            self._bar.update(task, completed=progress.done, total=progress.total, rate=rate)

        return show


class LineDisplay:
    """A line now and then, for logs and pipes."""

    def start(self, path: Path) -> Show:
        started = last = time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if progress.total is None:
                click.echo(f"{path}: listing objects", err=True)
            elif progress.done == progress.total or now - last >= PLAIN_EVERY:
                last = now
                click.echo(f"{path}: {_sentence(progress, started)}", err=True)

        return show


def _rate(progress: Progress, started: float) -> str:
    return f"{progress.done / max(time.monotonic() - started, 1e-3):,.0f}/s" if progress.done else "listing"


def _sentence(progress: Progress, started: float) -> str:
    assert progress.total is not None
    elapsed = time.monotonic() - started
    left = (progress.total - progress.done) * elapsed / max(progress.done, 1)
    counts = f"{progress.done:,} of {progress.total:,} objects, {_rate(progress, started)}"
    return f"{counts}, {left:.0f} s left" if left else counts


@contextmanager
def _display() -> Iterator[Display]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineDisplay()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        yield BarDisplay(bar)


def _print_summary(loads: list[tuple[Path, LoadReport]]) -> None:
    table = Table("repository", title="Published objects")
    for name in (*OBJECT_TYPES, "skipped", "seconds"):
        table.add_column(name, justify="right")
    for path, report in loads:
        published = [f"{report.objects[object_type]:,}" for object_type in OBJECT_TYPES]
        skipped = f"{sum(report.skipped.values()):,}"
        # Text, not markup: a path may contain brackets.
        table.add_row(escape(str(path)), *published, skipped, f"{report.seconds:.1f}")
    Console().print(table)
    for path, report in loads:
        for reason, count in report.skipped.items():
            click.echo(f"{path}: {count:,} objects were not published: {reason}", err=True)
        if not report.exact:
            click.echo(
                f"{path}: git could not walk the history, every object present was published; try git fsck",
                err=True,
            )
