"""``counters exporter``: the metrics of the counts, read when they are scraped."""

from __future__ import annotations

import click

from counters.config import Settings


@click.command()
@click.option("--host", help="Address to listen on.  [default: exporter.host]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: exporter.port]"
)
@click.pass_obj
def exporter(settings: Settings, host: str | None, port: int | None) -> None:
    """Publish the counts for Prometheus: /metrics, /healthz and /readyz.

    Small, and apart from the API: a scrape reads Redis itself, whatever the API is busy with.
    """
    # Imported here so that every other command starts without the web framework.
    from counters.api.server import bind, run_until_signal, url
    from counters.checkpoints.snapshots import Snapshot, Snapshots
    from counters.cli.operations import make_operations
    from counters.exporter import Scrapes, StoreReader, create_exporter
    from counters.history.store import HistoryStore
    from counters.objects.reader import CountsReader
    from counters.redis import connect

    own = settings.exporter
    listener = bind(own.host if host is None else host, own.port if port is None else port, "exporter")
    # A read that nobody waits for any more shall end, too.
    redis = connect(settings.redis.model_copy(update={"timeout": min(settings.redis.timeout, own.deadline)}))
    prefix, journal = settings.redis.prefix, settings.journal
    operations = make_operations(settings, redis)
    reader = StoreReader(
        redis,
        CountsReader(redis, prefix, journal.group_id, journal.prefix),
        HistoryStore(redis, prefix),
        Snapshots(lambda: Snapshot.read(operations)),
    )
    click.echo(f"counters: {url(listener)}metrics")
    try:
        run_until_signal(
            create_exporter(Scrapes(reader.read, own.deadline), legacy=own.legacy_family), listener
        )
    finally:
        redis.close()
