"""``counters verify``: recount exactly, and compare."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from counters.checkpoints.runner import Outcome
from counters.cli.tasks import run_task, tell, waits
from counters.cli.workbench import check_type, give_way, workbench
from counters.config import Settings
from counters.errors import InputError

if TYPE_CHECKING:
    from counters.objects.verify import Verdict


@click.command()
@click.argument("object_type", metavar="TYPE", callback=check_type)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the keys, about 28 bytes each, twice.  [default: a temporary one]",
)
@waits
@click.pass_obj
def verify(settings: Settings, object_type: str, spool: Path | None, wait: bool) -> int:
    """Recount the counter TYPE exactly, from what the workers had read when this began, and compare.

    Exits with 1 if the estimate deviates by more than 4 standard errors, or registers lack keys that the
    journal holds. Keys that came past the journal, out of a dump perhaps, show as a deviation. Stopped,
    paused or killed, the same command goes on where it was.
    """
    from counters.objects.verify import Verification

    give_way()
    with (
        _directory(object_type, spool) as directory,
        workbench(settings) as bench,
        bench.journal() as journal,
        closing(Verification(object_type, bench.store, journal, directory)) as task,
    ):
        run = run_task(bench.checkpoints, task, wait=wait)
        if run.outcome is not Outcome.COMPLETE:
            return tell(task.name, run, "the same command")
        task.remove()
    assert task.verdict is not None
    return _report(task.verdict)


@contextmanager
def _directory(object_type: str, spool: Path | None) -> Iterator[Path]:
    """For the keys. By itself, it is one that the next process finds again, that nobody else can have
    prepared, and that does not stay when it is empty."""
    default = Path(tempfile.gettempdir()) / f"counters-verify-{os.getuid()}-{object_type}"
    directory = default if spool is None else spool
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}; name another directory with --spool") from error
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    if spool is None and not private:
        raise InputError(
            f"{directory} is not a directory of this user alone (mode 700); delete it, or name another one "
            "with --spool"
        )
    try:
        yield directory
    finally:
        if spool is None:
            with suppress(OSError):
                directory.rmdir()


def _report(verdict: Verdict) -> int:
    from counters.objects.verify import MOST

    error = verdict.standard_error
    click.echo(f"exact      {verdict.exact:,}")
    click.echo(
        f"estimate   {verdict.estimate:,}" + ("" if verdict.whole else " (of the same range, recomputed)")
    )
    click.echo(
        f"deviation  {verdict.deviation:+.2f} standard errors of {100 * error:.2f} %; {MOST:g} are allowed"
    )
    click.echo(f"lost       {verdict.lost:,} registers are lower than these keys make them")
    if not verdict.whole:
        click.echo(
            "the journal does not reach back to its first record; older keys were not recounted", err=True
        )
    return 0 if verdict.good else 1
