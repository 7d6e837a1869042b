"""``counters count``: a member of the consumer group."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from counters.config import Settings

if TYPE_CHECKING:
    from counters.objects.store import CounterStore

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
    _await_redis(store, settings)
    handler = CountingHandler(store, settings.objects, journal.prefix, WorkerMetrics(registry))
    client = JournalClient(journal, handler, registry=registry)
    # A batch is some 100,000 objects without cycles that live until it is written. At its default of 700
    # Python's collector walks over them again and again, which costs a fifth of the time with decoded values.
    gc.set_threshold(50_000, 10, 10)
    with client.stop.on_signals():
        client.run()


def _await_redis(store: CounterStore, settings: Settings) -> None:
    """Return once the server answers. One that is loading or full does: the loop waits for that one.

    Only at the start is a wrong address told from a server that is away for a while.

    Raises:
        StoreUnavailable: it did not answer in time, or refuses this client.
    """
    from redis.exceptions import AuthenticationError, BusyLoadingError, ResponseError

    from counters.errors import StoreError, StoreUnavailable
    from counters.redis import mask_url
    from journal_client.errors import Unavailable

    url, limit = mask_url(settings.redis.url.get_secret_value()), settings.journal.start_timeout
    deadline = time.monotonic() + limit
    while True:
        try:
            return store.ping()
        except StoreError as error:
            raise StoreUnavailable(f"{url}: {error}; change redis.url") from error
        except Unavailable as problem:
            cause = problem.__cause__
            if isinstance(cause, AuthenticationError):
                raise StoreUnavailable(f"{url}: Redis refuses: {cause}; change redis.url") from cause
            if isinstance(cause, BusyLoadingError | ResponseError):
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                text = f"no Redis at {url} answered within {limit:g} s ({cause}); change redis.url"
                raise StoreUnavailable(text) from cause
            time.sleep(min(left, problem.retry_after))
