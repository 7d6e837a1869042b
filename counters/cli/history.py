"""``counters history``: rebuild, look at and export the history; and what ``counters serve`` runs of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from counters.config import Settings
from counters.errors import CountersError, InputError
from counters.history.files import encode, write_file
from counters.history.prometheus import PrometheusSource
from counters.history.refresh import Background, Refresher, Result, Source
from counters.history.samples import Sampler, SampleSource
from counters.history.series import Series
from counters.history.store import History, HistoryStore
from counters.objects.adoption import counts_reader
from counters.objects.spec import Count
from counters.redis import AnyRedis, connect


@click.group()
def history() -> None:
    """The history of the counts."""


@history.command()
@click.option(
    "--allow-shrink",
    is_flag=True,
    help="Forget what was published before: keep only what the source and the static files have now.",
)
@click.pass_obj
def refresh(settings: Settings, allow_shrink: bool) -> int:
    """Rebuild the history now, from Prometheus or from the samples.

    If that fails, the history stays as it is and is marked stale. Exits with 1, having done nothing, while
    another refresh is running or an operator has paused it.
    """
    with connect(settings.redis) as redis:
        outcome = make_refresher(settings, redis).refresh(allow_shrink=allow_shrink)
    if outcome.result is Result.BUSY:
        click.echo("another refresh is running; try again when it is done", err=True)
        return 1
    if outcome.result is Result.PAUSED:
        click.echo(outcome.problem, err=True)
        return 1
    if outcome.problem is not None:
        raise CountersError(outcome.problem)
    click.echo(f"{outcome.counters} counters, {outcome.points:,} points in {outcome.seconds:.1f} s")
    return 0


@history.command()
@click.pass_obj
def show(settings: Settings) -> None:
    """Show what the history holds, and how old it is."""
    found = _load(settings)
    state = f"stale: {found.problem}" if found.stale else "fresh"
    click.echo(f"refreshed {_moment(found.refreshed_at)}; {state}")
    width = max(map(len, found.series), default=0)
    for name, series in found.series.items():
        first, last = (datetime.fromtimestamp(series.times[at], UTC) for at in (0, -1))
        span = f"{_moment(first)} to {_moment(last)}"
        click.echo(f"{name:<{width}}  {len(series):>8,} points  {span}  {series.values[-1]:,.0f}")


@history.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default="-")
@click.option("--type", "types", multiple=True, help="Only this object type; may be given several times.")
@click.pass_obj
def export(settings: Settings, file: Path, types: tuple[str, ...]) -> None:
    """Write the history to FILE (or standard output) as JSON: per object type pairs of Unix milliseconds and
    count. FILE is written whole or not at all.
    """
    series = _chosen(_load(settings).series, types)
    if str(file) == "-":
        click.echo(encode(series))
    else:
        write_file(file, series)


def make_refresher(settings: Settings, redis: AnyRedis) -> Refresher:
    """What rebuilds the history as the settings say."""
    prefix = settings.redis.prefix
    source: Source = (
        SampleSource(redis, prefix) if settings.history.url is None else PrometheusSource(settings.history)
    )
    return Refresher(HistoryStore(redis, prefix), source, settings.history)


def keep_history(settings: Settings, redis: AnyRedis, refresher: Refresher) -> Background:
    """Refreshes the history while it is entered, and takes the samples for it if there is no Prometheus."""
    if settings.history.url is not None:
        return Background(refresher)
    reader = counts_reader(redis, settings)
    every = settings.history.sample_every
    return Background(Sampler(redis, settings.redis.prefix, lambda: certain(reader.read()), every), refresher)


def certain(counts: Iterable[Count]) -> dict[str, float]:
    """The counts that may become history: known, and not below what they were before."""
    return {count.name: count.value for count in counts if count.value is not None and not count.suspect}


def _load(settings: Settings) -> History:
    with connect(settings.redis) as redis:
        found = HistoryStore(redis, settings.redis.prefix).load()
    if found is None:
        raise InputError(
            "there is no history yet; counters serve builds it, counters history refresh does at once"
        )
    return found


def _chosen(series: dict[str, Series], types: tuple[str, ...]) -> dict[str, Series]:
    for name in types:
        if name not in series:
            raise InputError(f"the history has no {name!r}; it has {', '.join(series)}")
    return {name: series[name] for name in types} if types else series


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
