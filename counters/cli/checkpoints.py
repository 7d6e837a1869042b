"""``counters checkpoints``: look at the tasks, stop them and let them go on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from counters.checkpoints.model import AlreadyRunning, check_name
from counters.checkpoints.operations import Operations, Task, TaskAlone, read_cursor
from counters.cli import COMMANDS
from counters.cli.operations import ACTIVE, create_tables, make_operations
from counters.cli.retention import forget_node, prune
from counters.config import Settings
from counters.errors import InputError
from counters.redis import connect

_COLOURS = {"running": "green", ACTIVE: "green", "paused": "yellow", "damaged": "red"}
_HEADINGS = ("task", "state", "done", "counts", "last progress", "runner")
_SHORT = ("state", "done", "last progress")
_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


@click.group()
def checkpoints() -> None:
    """The long tasks: see them, stop them at a safe point, and let them go on there."""


checkpoints.add_command(prune)
checkpoints.add_command(forget_node)

as_json = click.option(
    "--json", "as_json", is_flag=True, help="For programs: everything that is known, as JSON."
)


@checkpoints.command("list")
@click.option("--state", help="Only tasks in this state: idle, running, paused, …")
@as_json
@click.pass_obj
def list_tasks(settings: Settings, state: str | None, as_json: bool) -> None:
    """Show every task, ordered by name."""
    with _operations(settings) as operations:
        rows = operations.list()
        now = operations.now()
    tasks = [Task.of(row) for row in rows if state is None or row.state == state]
    if as_json:
        click.echo(_json(tasks))
    elif not tasks:
        click.echo(f"no task is {_plain(state)}" if state and rows else "there are no tasks yet", err=True)
    else:
        _print_table([_cells(task, now) for task in tasks])


@checkpoints.command()
@click.argument("name")
@as_json
@click.pass_obj
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show all about one task, and who runs it."""
    with _operations(settings) as operations:
        task, now = operations.show(name), operations.now()
    if as_json:
        click.echo(_json(task))
        return
    lines = list(_lines(task, now))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        click.echo(f"{label:<{width}}  {_plain(text)}")


@checkpoints.command()
@click.argument("name")
@click.pass_obj
def pause(settings: Settings, name: str) -> None:
    """Have a task stop at its next batch, or not begin at all.

    Nothing is lost: it goes on where it stopped when it is resumed. A task that never ran may be paused, too.
    """
    with _operations(settings) as operations:
        operations.pause(name)
        holder = operations.holder(name)
    if holder is None:
        click.echo(f"{name} is paused; nothing runs it, and nothing will before it is resumed")
    else:
        click.echo(f"{name} is paused; {_plain(holder)} stops at its next batch")


@checkpoints.command()
@click.argument("name")
@click.pass_obj
def resume(settings: Settings, name: str) -> None:
    """Let a paused task run again, from where it stopped."""
    with _operations(settings) as operations:
        operations.resume(name)
        holder = operations.holder(name)
    click.echo(f"{name} may run again; {_next(name, holder)}")


@checkpoints.command()
@click.argument("name")
@click.option("--to", "cursor", metavar="JSON", help="The cursor to start at.  [default: the beginning]")
@click.pass_obj
def rewind(settings: Settings, name: str, cursor: str | None) -> None:
    """Have the next batch of a task start somewhere else.

    A run in progress goes on there as well. What a cursor of a task looks like, `show` tells.
    """
    position = None if cursor is None else read_cursor(os.fsencode(cursor))
    with _operations(settings) as operations:
        operations.rewind(name, position)
        holder = operations.holder(name)
    where = "at that cursor" if position else "at the beginning"
    click.echo(f"the next batch of {name} starts {where}; {_next(name, holder)}")


@checkpoints.command()
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Also while it runs: a run in progress then starts again at the beginning."
)
@click.pass_obj
def delete(settings: Settings, name: str, force: bool) -> None:
    """Forget a task: its cursor, its counts, and whether it is paused. What it did stays.

    While it runs that is refused: its runner would start again at the beginning and write a new row. Pause it
    first and wait for it to stop. --force is for a runner that is cut off and holds its claim until Redis
    notices.
    """
    with _operations(settings) as operations:
        try:
            found = operations.delete(name, force=force)
        except AlreadyRunning as error:
            raise InputError(
                f"{error}; pause it and try again when it has stopped, or use --force to have it start again"
            ) from error
    click.echo(
        f"{name} is forgotten; its next run starts at the beginning"
        if found
        else f"{name} is not known anyway"
    )


@contextmanager
def _operations(settings: Settings) -> Iterator[Operations]:
    with connect(settings.redis) as redis:
        yield make_operations(settings, redis)


def _next(name: str, holder: str | None) -> str:
    """What has to happen for the task to go on."""
    if holder is not None:
        return f"{_plain(holder)} goes on"
    command = check_name(name).partition(":")[0]
    return (
        f"run counters {command} to go on" if command in COMMANDS else "it goes on when it is started again"
    )


def _json(shown: object) -> str:
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, aligned lines for everything that reads lines."""
    console = Console()
    if not console.is_terminal:
        lines = (_HEADINGS, *rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold", no_wrap=heading in _SHORT)
    for name, state, *others in rows:
        table.add_row(Text(name), Text(state, style=_COLOURS.get(state, "")), *map(Text, others))
    console.print(table)


def _cells(task: Task, now: datetime) -> list[str]:
    cells = (
        task.name,
        task.state,
        _percent(task),
        _counts(task.counts),
        _age(task.heartbeat_at, now) if task.heartbeat_at else "",
        task.runner or "",
    )
    return [_plain(cell) for cell in cells]


def _lines(task: TaskAlone, now: datetime) -> Iterator[tuple[str, str]]:
    yield "task", task.name
    yield "state", task.state + (", written by the system" if task.system else "")
    if task.state != task.observed:
        yield "reported", task.observed
    if not task.system:
        yield "runs now", task.holder or "nowhere"
    if task.progress is not None:
        yield "done", _percent(task)
    yield "cursor", msgspec.json.encode(task.cursor).decode() if task.cursor else "at the beginning"
    yield "counts", _counts(task.counts) or "none"
    if task.items:
        yield "items", f"{_counts(task.items)} in all runs"
    moments = (
        ("last progress", task.heartbeat_at),
        ("paused" if task.state == "paused" else "resumed", task.desired_at),
        ("written", task.updated_at),
    )
    for label, moment in moments:
        if moment is not None:
            yield label, f"{moment:%Y-%m-%d %H:%M:%S} UTC, {_age(moment, now)}"
    if task.runner is not None:
        yield "last runner", task.runner


def _percent(task: Task) -> str:
    # Rounded down: 100 % is said of what is done.
    return "" if task.progress is None else f"{int(task.progress * 100)} %"


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in counts.items())


def _value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _age(moment: datetime, now: datetime) -> str:
    seconds = max(0, int((now - moment).total_seconds()))
    for unit, size in _AGES:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _plain(text: str) -> str:
    """Rows hold what somebody wrote: nothing of it may move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


@checkpoints.command("create-tables")
@click.pass_obj
def create_tables_(settings: Settings) -> None:
    """Make the tables of checkpoints in the database of sql.url, where they are missing."""
    create_tables(settings.sql)
    click.echo("the tables are there")
