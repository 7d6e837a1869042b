"""``counters load``: publish the objects of a real source to the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from counters.cli.progress import Amount, Show, display
from counters.config import Settings
from counters.load import LoadReport, Progress, Repository, load_repository
from counters.load.git import MAX_BYTES
from counters.load.objects import OBJECT_TYPES
from journal_client.writer import PRODUCER_DEFAULTS, JournalWriter

FRAMING = 1_024
"""Bytes of a record that the journal adds to key and value, at most."""


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
    with JournalWriter(brokers or journal.brokers, prefix or journal.prefix, kafka=journal.kafka) as writer:
        publish(paths, writer, origin=origin, max_bytes=limit)


def publish(
    paths: tuple[Path, ...], writer: JournalWriter, *, origin: str | None = None, max_bytes: int = MAX_BYTES
) -> None:
    """Publish repositories one after the other, showing how far they are, and print what was published.

    Args:
        max_bytes: of key and value together; larger objects are reported and left out.
    """
    with display() as shown:
        reports = [
            load_repository(
                path,
                writer,
                origin=origin,
                max_bytes=max_bytes,
                progress=_shows(shown.start(str(path), "objects")),
            )
            for path in paths
        ]
    _print_summary(list(zip(paths, reports, strict=True)))


def _shows(show: Show) -> Callable[[Progress], None]:
    return lambda progress: show(Amount(progress.done, progress.total, progress.done))


def _print_summary(loads: list[tuple[Path, LoadReport]]) -> None:
    total = sum(report.total for _, report in loads)
    seconds = sum(report.seconds for _, report in loads)
    table = Table(caption=f"{total:,} objects in {seconds:.1f} s")
    table.add_column("object type")
    table.add_column("published", justify="right")
    for object_type in OBJECT_TYPES:
        table.add_row(object_type, f"{sum(report.objects[object_type] for _, report in loads):,}")
    Console().print(table)
    for path, report in loads:
        if report.skipped:
            skipped = ", ".join(f"{count:,} {reason}" for reason, count in report.skipped.items())
            click.echo(f"{path}: not published: {skipped}", err=True)
        if not report.exact:
            click.echo(f"{path}: broken history, every object present was published; try git fsck", err=True)
