"""``counters serve``: the API, the metrics and the page."""

from __future__ import annotations

import functools
import socket

import click

from counters.config import Settings


@click.command()
@click.option("--host", help="Address to listen on.  [default: api.host]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: api.port]")
@click.option("--processes", type=click.IntRange(1, 64), help="Serving processes.  [default: api.processes]")
@click.pass_obj
def serve(settings: Settings, host: str | None, port: int | None, processes: int | None) -> int:
    """Serve the counts: API, page, metrics and health."""
    # Imported here so that every other command starts without the web framework.
    from counters.api.processes import Processes, listen
    from counters.api.server import url

    api = settings.api
    listeners = listen(
        api.host if host is None else host,
        api.port if port is None else port,
        api.processes if processes is None else processes,
    )
    click.echo(f"counters: {url(listeners[0])}")
    if len(listeners) == 1:
        _serve(settings, listeners[0])
        return 0
    return Processes(listeners, functools.partial(_serve, settings)).run()


def _serve(settings: Settings, listener: socket.socket) -> None:
    """Serve on ``listener`` until a signal; every client is made here, in the process that uses it."""
    from counters.api.app import create_app
    from counters.api.legacy_calls import Backend
    from counters.api.server import run_until_signal
    from counters.cli.history import keep_history, make_refresher
    from counters.cli.operations import make_operations
    from counters.history.store import HistoryStore
    from counters.objects.adoption import counts_reader
    from counters.objects.direct import DirectWriter
    from counters.objects.store import CounterStore
    from counters.redis import connect

    redis = connect(settings.redis)
    prefix, journal = settings.redis.prefix, settings.journal
    store = CounterStore(redis, prefix, journal.group_id)
    refresher = make_refresher(settings, redis)
    backend = Backend(
        writer=DirectWriter(store, settings.objects, journal.prefix),
        history=HistoryStore(redis, prefix),
        refresh=refresher.refresh_on_request,
        operations=make_operations(settings, redis),
    )
    try:
        with keep_history(settings, redis, refresher):
            run_until_signal(create_app(settings, counts_reader(redis, settings), backend=backend), listener)
    finally:
        redis.close()
