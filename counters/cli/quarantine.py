"""``counters quarantine``: records that were set aside, to look at, to count after all, or to let go."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from counters.checkpoints.nodes import Node
from counters.checkpoints.receipts import Receipts
from counters.checkpoints.runner import Outcome
from counters.cli.tasks import run_task, tell, waits
from counters.cli.workbench import workbench
from counters.config import Settings
from counters.errors import InputError
from counters.objects.retry import Retry, unhandled
from counters.redis import connect
from journal_client.letters import Letter, Letters, open_letters
from journal_client.serialization import show_key

PAGE = 1_000
"""Letters read at a time."""

SHOWN = 50
"""Letters that ``list`` shows, unless it says otherwise."""


def chooses(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``ID...`` and ``--all`` to a command."""
    everything = click.option(
        "--all", "everything", is_flag=True, help="All that are neither counted nor dropped."
    )
    return click.argument("ids", metavar="[ID]...", nargs=-1)(everything(command))


@click.group()
def quarantine() -> None:
    """Records that were set aside: look at them, count them after all, or let them go.

    An ID is <topic>:<partition>:<offset>.
    """


@quarantine.command("list")
@click.option(
    "--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Records to show."
)
@click.option("--handled", is_flag=True, help="Also those that were counted or dropped since.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_obj
def list_(settings: Settings, limit: int, handled: bool, as_json: bool) -> None:
    """List the records that wait, the oldest first."""
    letters = open_letters(settings.journal)
    with connect(settings.redis) as redis:
        receipts = Receipts(redis, settings.redis.prefix)
        found = _every(letters) if handled else _waiting(letters, receipts)
        some = list(islice(found, limit + 1))
    shown, more = some[:limit], len(some) > limit
    if as_json:
        for letter in shown:
            click.echo(json.dumps(_fields(letter)))
    elif shown:
        _print(shown)
    else:
        click.echo("nothing is set aside")
    if more:
        click.echo(f"there are more than {limit}; --limit shows them", err=True)
    _tell_damaged(letters)


@quarantine.command()
@click.argument("id_", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_obj
def show(settings: Settings, id_: str, as_json: bool) -> None:
    """Show one record whole."""
    letter = next((letter for letter in _every(open_letters(settings.journal)) if letter.id == id_), None)
    if letter is None:
        raise InputError(f"nothing is set aside as {id_!r}; counters quarantine list shows what is")
    if as_json:
        click.echo(json.dumps(_fields(letter)))
        return
    with connect(settings.redis) as redis:
        done = Receipts(redis, settings.redis.prefix).known([letter.receipt])
    click.echo(f"record   {letter.id}")
    click.echo(f"written  {_moment(letter.timestamp)}")
    click.echo(f"reason   {letter.reason}: {_printable(letter.detail)}")
    click.echo(f"now      {'counted or dropped' if done else 'waits'}")
    click.echo(f"key      {show_key(letter.key)}")
    click.echo("value    " + ("(null)" if letter.value is None else f"{len(letter.value):,} bytes"))
    for line in _dump(letter.value or b""):
        click.echo(line)


@quarantine.command()
@chooses
@waits
@click.pass_obj
def retry(settings: Settings, ids: tuple[str, ...], everything: bool, wait: bool) -> int:
    """Count records after all, once the reason is mended.

    Each is counted once, however often it is retried. Exits with 1 if some still cannot be counted.
    """
    only = _chosen(ids, everything)
    letters = open_letters(settings.journal)
    with workbench(settings) as bench:
        receipts = Receipts(bench.redis, settings.redis.prefix)
        if only is not None:
            _those(only, letters, receipts)
            bench.checkpoints.delete("quarantine:chosen")  # the cursor was about other records
        task = Retry(
            letters,
            receipts,
            bench.bulk_writer(),
            bench.extraction,
            Node(bench.checkpoints, "quarantine"),  # the claim allows one process only
            only,
        )
        run = run_task(bench.checkpoints, task, wait=wait)
    if run.outcome is not Outcome.COMPLETE:
        return tell(task.name, run, "the same command")
    counted, failed = run.counts["ok"], run.counts["failed"]
    click.echo(f"{counted:,} records counted" + (f", {failed:,} still cannot be" if failed else ""))
    return 1 if failed else 0


@quarantine.command()
@chooses
@click.pass_obj
def drop(settings: Settings, ids: tuple[str, ...], everything: bool) -> None:
    """Let records go: they are not listed and not retried any more.

    They stay where they are kept, for as long as that keeps them.
    """
    only = _chosen(ids, everything)
    letters = open_letters(settings.journal)
    with connect(settings.redis) as redis:
        receipts = Receipts(redis, settings.redis.prefix)
        dropped = receipts.drop(letter.receipt for letter in _those(only, letters, receipts))
    click.echo(f"{dropped:,} records dropped")


def _chosen(ids: tuple[str, ...], everything: bool) -> set[str] | None:
    """The ids; None: all."""
    if bool(ids) == everything:
        raise click.UsageError("name records by their ID, or give --all for all of them")
    return None if everything else set(ids)


def _those(only: set[str] | None, letters: Letters, receipts: Receipts) -> list[Letter]:
    """The waiting letters of these ids.

    Raises:
        InputError: one of them does not wait.
    """
    found = [letter for letter in _waiting(letters, receipts) if only is None or letter.id in only]
    if only is not None and (unknown := sorted(only - {letter.id for letter in found})):
        raise InputError(f"{unknown[0]!r} does not wait; counters quarantine list shows what does")
    return found


def _every(letters: Letters) -> Iterator[Letter]:
    for page in _pages(letters):
        yield from {letter.receipt: letter for letter in page}.values()


def _waiting(letters: Letters, receipts: Receipts) -> Iterator[Letter]:
    for page in _pages(letters):
        yield from unhandled(page, receipts)


def _pages(letters: Letters) -> Iterator[list[Letter]]:
    cursor: Any = {}
    while cursor is not None:
        page, cursor = letters.read(cursor, PAGE)
        yield page


def _print(letters: list[Letter]) -> None:
    table = Table("record", "written", "reason", "key", "detail", box=None, header_style="bold")
    for letter in letters:
        detail = _printable(letter.detail)
        table.add_row(letter.id, _moment(letter.timestamp), letter.reason, show_key(letter.key), detail)
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}  # the text is not ours
    console = Console(**plain)
    if not console.is_terminal:
        console = Console(width=10_000, **plain)  # a line per record
    console.print(table)


def _fields(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "reason": letter.reason,
        "detail": letter.detail,
        "key": _base64(letter.key),
        "value": _base64(letter.value),
        "truncated": letter.truncated,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _moment(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "-"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _dump(data: bytes) -> Iterator[str]:
    """Sixteen bytes a line: offset, hexadecimal, text."""
    for start in range(0, len(data), 16):
        line = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"  {start:08x}  {line.hex(' '):<47}  {text}"


def _tell_damaged(letters: Letters) -> None:
    if letters.damaged:
        click.echo(f"{letters.damaged:,} entries of the quarantine are damaged and not shown", err=True)
