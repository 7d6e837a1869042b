"""``counters up``: everything at once."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from pathlib import Path
from types import FrameType

import click
from pydantic import SecretStr

from counters.config import Settings


@click.command()
@click.argument("repositories", metavar="[REPO]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Keep Redis's data and the logs here."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the page.  [default: api.port]")
@click.option(
    "--workers", type=click.IntRange(1, 16), default=2, show_default=True, help="Members of the group."
)
@click.pass_obj
def up(
    settings: Settings, repositories: tuple[Path, ...], data: Path | None, port: int | None, workers: int
) -> None:
    """Everything at once on embedded servers, for one machine.

    Starts Kafka, Redis, workers and the page, and publishes the objects of git repositories (the one it
    stands in if none is named). Ctrl-C ends it all. Of the settings, the addresses of servers, the consumer
    group, a quarantine topic, and the source and pace of the history do not apply.
    """
    from counters.api.server import bind
    from counters.cli.load import publish
    from counters.errors import CountersError
    from counters.load import Repository
    from counters.load.objects import OBJECT_TYPES
    from counters.up import System

    paths = repositories or _here()
    for path in paths:
        Repository.open(path)
    api = settings.api.model_copy(update={} if port is None else {"port": port})
    if api.token is None:
        api = api.model_copy(update={"token": SecretStr(secrets.token_urlsafe(9))})
    settings = settings.model_copy(update={"api": api})
    bind(settings.api.host, settings.api.port).close()  # a port in use is said before anything starts
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)  # a shell may have told its background jobs to ignore Ctrl-C
    with (
        contextlib.suppress(KeyboardInterrupt),
        System(settings, OBJECT_TYPES, data=data, workers=workers) as system,
    ):
        click.echo(f"counters: {system.url}")
        click.echo(
            f"Kafka at {system.settings.journal.brokers}, "
            f"Redis at {system.settings.redis.url.get_secret_value()}; Ctrl-C ends everything."
        )
        if settings.api.token is not None:
            token = settings.api.token.get_secret_value()
            click.echo(f"Pausing a task on the page takes the token {token}")
        if paths:
            with system.writer() as writer:
                publish(paths, writer)
        else:
            click.echo("No git repository here; name one, or publish to the Kafka above.", err=True)
        while (problem := system.ended()) is None:
            time.sleep(0.2)
        raise CountersError(problem)


def _here() -> tuple[Path, ...]:
    from counters.errors import InputError
    from counters.load import Repository

    try:
        Repository.open(Path())
    except InputError:
        return ()
    return (Path(),)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
