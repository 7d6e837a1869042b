"""``counters backfill``: count what the live workers did not read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from counters.checkpoints.model import check_name, scope
from counters.checkpoints.runner import Outcome
from counters.cli.tasks import Task, run_task, tell, waits
from counters.cli.workbench import check_type, give_way, workbench
from counters.config import Settings
from counters.objects.dumps import Encoding, Form, Place

_FORMS = {
    ".jsonl": Form.JSONL,
    ".ndjson": Form.JSONL,
    ".csv": Form.CSV,
    ".tsv": Form.CSV,
    ".parquet": Form.PARQUET,
}


@click.command()
@click.argument("object_type", metavar="TYPE", callback=check_type)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    help="Count the keys of a dump, - for standard input, instead of the topic's past.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in Form]),
    help="Of the dump.  [default: by the name of FILE, else hex: a key per line]",
)
@click.option(
    "--field", help="Where the key is: field of JSON lines (dots allowed), column of CSV or Parquet."
)
@click.option(
    "--encoding",
    type=click.Choice([encoding.value for encoding in Encoding]),
    help="How the dump writes a key.  [default: hex]",
)
@click.option("--name", help="Tells dumps apart that are read at the same time.  [default: the name of FILE]")
@waits
@click.pass_obj
def backfill(
    settings: Settings,
    object_type: str,
    source: Path | None,
    form: str | None,
    field: str | None,
    encoding: str | None,
    name: str | None,
    wait: bool,
) -> int:
    """Count the past of the topic of TYPE, or a dump of keys, beside the live workers.

    Counting a key twice changes nothing, so it may overlap with what they read. A topic is read from its
    beginning to where it ends now. Stopped, paused or killed, the same command goes on where it was.
    """
    from counters.objects.backfill import DumpBackfill, TopicBackfill
    from counters.objects.dumps import open_dump

    give_way()
    with workbench(settings) as bench:
        if source is None:
            refuse = {"--format": form, "--field": field, "--encoding": encoding, "--name": name}
            if given := [option for option, value in refuse.items() if value is not None]:
                raise click.UsageError(f"{given[0]} is about a dump; name it with --from")
            with bench.journal() as journal:
                task: Task = TopicBackfill(object_type, journal, bench.bulk_writer())
                run = run_task(bench.checkpoints, task, wait=wait)
        else:
            place: Place = "-" if str(source) == "-" else source
            shown = "stdin" if place == "-" else source.name
            task_name = check_name(f"backfill:{object_type}:{scope(name or shown)}")
            chosen = _form_of(source) if form is None else Form(form)
            with closing(open_dump(place, chosen, field=field, encoding=Encoding(encoding or "hex"))) as dump:
                task = DumpBackfill(task_name, object_type, dump, bench.bulk_writer())
                run = run_task(bench.checkpoints, task, wait=wait)
    if run.outcome is not Outcome.COMPLETE:
        return tell(task.name, run, "the same command")
    failed = f", {run.counts['failed']:,} could not be" if run.counts["failed"] else ""
    click.echo(f"{run.counts['ok']:,} {task.unit} counted{failed}")
    return 0


def _form_of(path: Path) -> Form:
    """What the name of a file says it holds."""
    return _FORMS.get(Path(path.name.removesuffix(".gz")).suffix.lower(), Form.HEX)
