"""``counters verify``: recount exactly, and compare."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from counters.checkpoints.model import scope
from counters.checkpoints.runner import Outcome
from counters.cli.tasks import run_task, tell, waits
from counters.cli.workbench import give_way, workbench
from counters.config import Settings


@click.command()
@click.argument("object_type", metavar="TYPE")
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
    journal holds. Stopped, paused or killed, the same command goes on where it was.
    """
    from counters.objects.verify import MOST, Verification

    give_way()
    directory = spool or Path(tempfile.gettempdir()) / f"counters-verify-{os.getuid()}-{scope(object_type)}"
    with workbench(settings) as bench, bench.scan() as scan:
        task = Verification(object_type, bench.store, scan, bench.extraction, directory)
        try:
            run = run_task(bench.checkpoints, task, wait=wait)
            if run.outcome is not Outcome.COMPLETE or task.verdict is None:
                return tell(task.name, run, "the same command")
            task.remove()
        finally:
            task.close()
    verdict = task.verdict
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
