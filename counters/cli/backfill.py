"""``counters backfill``: count what the live workers did not read."""

from __future__ import annotations

from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import click

from counters.checkpoints.model import Checkpoint, check_name, scope
from counters.checkpoints.runner import Outcome
from counters.cli.tasks import Task, run_task, tell, waits
from counters.cli.workbench import Workbench, check_type, give_way, workbench
from counters.config import Settings
from counters.errors import InputError
from counters.objects.dumps import Encoding, Form, Place
from counters.objects.reader import CountsReader

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
    "--field",
    help="Where the key is: field of JSON lines (dots allowed), column of CSV or Parquet.  "
    "[default: jsonl: id; csv, parquet: the only column]",
)
@click.option(
    "--encoding",
    type=click.Choice([encoding.value for encoding in Encoding]),
    help="How the dump writes a key.  [default: hex]",
)
@click.option("--name", help="Tells dumps apart that are read at the same time.  [default: the name of FILE]")
@click.option("--create", is_flag=True, help="With --from: begin the counter if there is none of that name.")
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
    create: bool,
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
            refuse = {
                "--format": form,
                "--field": field,
                "--encoding": encoding,
                "--name": name,
                "--create": create or None,
            }
            if given := [option for option, value in refuse.items() if value is not None]:
                raise click.UsageError(f"{given[0]} is about a dump; name it with --from")
            with bench.journal() as journal:
                task: Task = TopicBackfill(object_type, journal, bench.bulk_writer())
                resumed = _is_begun(bench.checkpoints.get(task.name))
                run = run_task(bench.checkpoints, task, wait=wait)
        else:
            place: Place = "-" if str(source) == "-" else source
            shown = "stdin" if place == "-" else source.name
            task_name = check_name(f"backfill:{object_type}:{_scope(shown if name is None else name)}")
            if not create:
                _check_counter(bench, object_type)
            chosen = _form_of(source) if form is None else Form(form)
            with closing(open_dump(place, chosen, field=field, encoding=Encoding(encoding or "hex"))) as dump:
                task = DumpBackfill(task_name, object_type, dump, bench.bulk_writer())
                resumed = _is_begun(bench.checkpoints.get(task_name))
                run = run_task(bench.checkpoints, task, wait=wait)
    if run.outcome is not Outcome.COMPLETE:
        return tell(task.name, run, "the same command")
    failed = f", {run.counts['failed']:,} could not be" if run.counts["failed"] else ""
    click.echo(f"{run.counts['ok']:,} {task.unit} counted{' in this run' if resumed else ''}{failed}")
    return 1 if run.counts["failed"] and not run.counts["ok"] else 0


def _scope(name: str) -> str:
    """``name`` as a part of a task's name; what has to be replaced in it does not make two names one."""
    if not name:
        raise click.UsageError("--name is empty; leave it out or give one")
    part = scope(name)
    if part == name:
        return part
    return f"{part}.{blake2b(name.encode(errors='surrogateescape'), digest_size=3).hexdigest()}"


def _check_counter(bench: Workbench, name: str) -> None:
    """A mistyped name must not begin a counter."""
    if bench.store.find(name) is None:
        journal, prefix = bench.settings.journal, bench.settings.redis.prefix
        counts = CountsReader(bench.redis, prefix, journal.group_id, journal.prefix).read()
        known = ", ".join(count.name for count in counts) or "none"
        raise InputError(f"no counter {name} in Redis; there are: {known}; --create begins one")


def _is_begun(row: Checkpoint | None) -> bool:
    return row is not None and bool(row.position)


def _form_of(path: Path) -> Form:
    """What the name of a file says it holds."""
    return _FORMS.get(Path(path.name.removesuffix(".gz")).suffix.lower(), Form.HEX)
