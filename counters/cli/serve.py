"""``counters serve``: the API, the metrics and the page."""

from __future__ import annotations

import click

from counters.config import Settings


@click.command()
@click.option("--host", help="Address to listen on.  [default: api.host]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: api.port]")
@click.pass_obj
def serve(settings: Settings, host: str | None, port: int | None) -> None:
    """Serve the counts: API, page, metrics and health."""
    # Imported here so that every other command starts without the web framework.
    from counters.api.app import create_app
    from counters.api.server import bind, run_until_signal, url
    from counters.objects.reader import CountsReader
    from counters.redis import connect

    listener = bind(settings.api.host if host is None else host, settings.api.port if port is None else port)
    redis = connect(settings.redis)
    reader = CountsReader(redis, settings.redis.prefix, settings.journal.group_id, settings.journal.prefix)
    click.echo(f"counters: {url(listener)}")
    try:
        run_until_signal(create_app(settings, reader), listener)
    finally:
        redis.close()
