"""``counters check``: what an operator would look at by hand, one line per finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from counters.cli.findings import (
    Finding,
    Level,
    Positions,
    journal_findings,
    redis_findings,
    settings_findings,
)
from counters.config import Settings
from counters.errors import CountersError
from counters.redis import connect
from counters.settings import effective_settings

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the brokers, and for each answer of Redis.",
)
@click.option("--settings/--no-settings", "show_settings", default=True, help="Show the effective settings.")
@click.pass_context
def check(ctx: click.Context, timeout: float, show_settings: bool) -> None:
    """Examine settings, journal and Redis, and say what is wrong.

    Exit code 0: all is well or there are only warnings; 1: something is marked FAIL.
    """
    settings: Settings = ctx.obj
    if show_settings:
        for key, value, source in effective_settings(settings):
            click.echo(f"      {key} = {value} ({source})")
    levels: Counter[Level] = Counter()
    for finding in examine(settings, timeout):
        levels[finding.level] += 1
        label = click.style(f"{finding.level.value:<4}", fg=_COLOURS[finding.level])
        click.echo(f"{label}  {finding.subject}: {finding.text}")
    click.echo(f"{levels[Level.OK]} ok, {levels[Level.WARN]} to look at, {levels[Level.FAIL]} failed")
    ctx.exit(1 if levels[Level.FAIL] else 0)


def examine(settings: Settings, timeout: float) -> Iterator[Finding]:
    """Everything there is to say about these settings and the servers they name; never raises because of
    one."""
    yield from settings_findings(settings)
    store = settings.redis.model_copy(update={"timeout": min(timeout, settings.redis.timeout)})
    positions: Positions = None
    try:
        with connect(store) as redis:
            positions = yield from redis_findings(redis, settings)
    except CountersError as error:
        yield Finding(Level.FAIL, "redis", str(error))
    yield from journal_findings(settings, positions, timeout)
