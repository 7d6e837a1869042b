"""``counters rebuild``: recount a counter, with another precision perhaps."""

from __future__ import annotations

import click

from counters.checkpoints.runner import Outcome
from counters.cli.tasks import run_task, tell, waits
from counters.cli.workbench import Workbench, check_type, give_way, workbench
from counters.config import MAX_PRECISION, MIN_PRECISION, Settings


@click.command()
@click.argument("object_type", metavar="TYPE", callback=check_type)
@click.option(
    "--precision",
    type=click.IntRange(MIN_PRECISION, MAX_PRECISION),
    help="Index bits of the new count.  [default: objects.precision]",
)
@click.option("--allow-fall", is_flag=True, help="Switch also if the recount finds less than was counted.")
@click.option("--abandon", is_flag=True, help="Give up a rebuild that was begun; nothing of it stays.")
@waits
@click.pass_obj
def rebuild(
    settings: Settings, object_type: str, precision: int | None, allow_fall: bool, abandon: bool, wait: bool
) -> int:
    """Recount the counter TYPE from the beginning of the journal while the workers go on, then switch to the
    new count in one step.

    Until then the published count is the old one. If the recount finds less than was counted, beyond what
    the errors of both explain, nothing is switched: the journal does not hold everything any more. Stopped,
    paused or killed, the same command goes on where it was.
    """
    from counters.objects.rebuild import Rebuild

    with workbench(settings) as bench:
        if abandon:
            return _abandon(bench, object_type)
        give_way()
        with bench.journal() as journal:
            task = Rebuild(
                object_type,
                settings.objects.precision if precision is None else precision,
                bench.store,
                bench.generations,
                journal,
                allow_fall=allow_fall,
            )
            run = run_task(bench.checkpoints, task, wait=wait)
    if run.outcome is not Outcome.COMPLETE:
        return tell(task.name, run, "the same command")
    if task.counts is None:  # that is all a process knows which was killed after it
        click.echo(f"{object_type}: the switch was made before; it is recorded now")
    else:
        old, new = task.counts
        click.echo(f"{object_type}: {new:,} (was {old:,})")
    return 0


def _abandon(bench: Workbench, object_type: str) -> int:
    name = f"rebuild:{object_type}"
    with bench.checkpoints.claim(name):  # a running one would begin anew
        abandoned = bench.generations.abandon(object_type)
        known = bench.checkpoints.delete(name)
    click.echo(f"{object_type}: the rebuild was given up" if abandoned or known else f"no {name} was begun")
    return 0
