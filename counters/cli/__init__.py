"""The command line: one thin file per command, loaded only when it is called.

Importing this module imports nothing but click, so that ``counters --help`` is fast and works whatever the
settings, the servers and the optional packages look like.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click


class Command(NamedTuple):
    """Where a subcommand is defined, and its line in ``counters --help``."""

    target: str
    help: str


COMMANDS = {
    "up": Command("counters.cli.up:up", "Everything at once on embedded servers, for one machine."),
    "count": Command("counters.cli.count:count", "Count the objects of the journal into Redis."),
    "serve": Command("counters.cli.serve:serve", "Serve the counts: API, page, metrics."),
    "exporter": Command("counters.cli.exporter:exporter", "Publish the counts for Prometheus."),
    "backfill": Command("counters.cli.backfill:backfill", "Count a topic's past, or a dump of keys."),
    "rebuild": Command("counters.cli.rebuild:rebuild", "Recount a counter, with another precision perhaps."),
    "verify": Command("counters.cli.verify:verify", "Recount a counter exactly, and compare."),
    "quarantine": Command("counters.cli.quarantine:quarantine", "Records set aside: look, retry, drop."),
    "checkpoints": Command(
        "counters.cli.checkpoints:checkpoints", "See the long tasks, stop them, let them go on."
    ),
    "history": Command("counters.cli.history:history", "Rebuild, show and export the history."),
    "check": Command("counters.cli.check:check", "Examine settings, journal and Redis; say what is wrong."),
    "load": Command("counters.cli.load:load", "Publish the objects of git repositories to the journal."),
}

LOG_LEVELS = ("debug", "info", "warning", "error")
BAD_INPUT, UNEXPECTED, INTERRUPTED = 2, 1, 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        # Help must be readable with a broken settings file, and click runs the group before it parses the
        # arguments of the command.
        ctx.meta["counters.help"] = "--help" in rest
        return name, command, rest


@click.group(cls=LazyGroup, name="counters", context_settings={"max_content_width": 100})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="COUNTERS_CONFIG",
    help="Settings file (YAML). Environment variables COUNTERS_SECTION__KEY override it.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    envvar="COUNTERS_LOG_LEVEL",
    show_default=True,
    help="How much to log to standard error; debug also shows tracebacks.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="COUNTERS_LOG_FORMAT",
    show_default=True,
    help="One key=value line or one JSON object per log record.",
)
@click.version_option(package_name="counters", prog_name="counters", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, log_level: str, log_format: str) -> None:
    """Live distinct counts of keyed Kafka topics."""
    if ctx.meta.get("counters.help"):
        return
    from counters.cli.logs import configure_logging
    from counters.settings import load_settings

    configure_logging(log_level, log_format)
    if ctx.obj is None:
        ctx.obj = load_settings(config)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a command's own verdict, 2 bad input, 130 interrupted.

    Whatever goes wrong ends in one line on standard error. A command may return its exit code.
    """
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    try:
        result = cli.main(args=args, prog_name="counters", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        return _fail(_usage_message(error), BAD_INPUT)
    except Exception as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            logging.getLogger(__name__).debug("traceback of the error below", exc_info=True)
        return _fail(*_explain(error))
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    """Say it in one line. What of it came from outside must not move the terminal."""
    line = "".join(
        one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(message.split())
    )
    click.echo(f"counters: {line}", err=True)
    return code


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message.rstrip('.')}; see {context.command_path} --help" if context else message


def _explain(error: Exception) -> tuple[str, int]:
    """The message and exit code of an error; imports are late because --help does not need them."""
    from pydantic import ValidationError

    from counters.errors import CountersError
    from counters.settings import explain
    from journal_client.errors import JournalError

    if isinstance(error, CountersError | JournalError):
        return str(error), BAD_INPUT
    if isinstance(error, ValidationError):
        return explain(error), BAD_INPUT
    return f"unexpected {type(error).__name__}: {error} (--log-level debug shows the traceback)", UNEXPECTED
