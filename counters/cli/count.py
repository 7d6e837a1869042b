"""``counters count``: a member of the consumer group."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from counters.config import Settings

logger = logging.getLogger(__name__)


@click.command()
@click.option("--stop-at-end", is_flag=True, help="Stop once everything is read that was there at the start.")
@click.option("--stop-after", type=click.IntRange(min=1), help="Stop after about this many records.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Port for /livez, /readyz and /metrics.")
@click.option(
    "--quarantine-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for records that cannot be used.",
)
@click.pass_obj
def count(
    settings: Settings,
    stop_at_end: bool,
    stop_after: int | None,
    http_port: int | None,
    quarantine_file: Path | None,
) -> None:
    """Count the objects of the journal into Redis.

    Run as many as there are cores to spare, up to one per partition: they share the topics as one consumer
    group.
    """
    import gc

    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    from counters.objects.metrics import WorkerMetrics
    from counters.objects.store import CounterStore
    from counters.objects.worker import CountingHandler
    from counters.redis import connect
    from journal_client.client import JournalClient

    journal = settings.journal.model_copy(
        update={
            "stop_at_end": stop_at_end or settings.journal.stop_at_end,
            "stop_after": stop_after or settings.journal.stop_after,
        }
    )
    if http_port is not None:
        journal = journal.model_copy(update={"http": journal.http.model_copy(update={"port": http_port})})
    if quarantine_file is not None:
        quarantine = journal.quarantine.model_copy(update={"file": quarantine_file})
        journal = journal.model_copy(update={"quarantine": quarantine})

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    store = CounterStore(connect(settings.redis), settings.redis.prefix, journal.group_id)
    handler = CountingHandler(store, settings.objects, journal.prefix, WorkerMetrics(registry))
    client = JournalClient(journal, handler, registry=registry)
    # A batch is some 100,000 objects without cycles that live until it is written. At its default of 700
    # Python's collector walks over them again and again, which costs a fifth of the time with decoded values.
    gc.set_threshold(50_000, 10, 10)
    with client.stop.on_signals():
        client.run()
