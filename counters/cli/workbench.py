"""What the commands that run long tasks are made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import Settings
from counters.objects.bulk import BulkWriter
from counters.objects.derived import Derived
from counters.objects.extraction import Extraction
from counters.objects.generations import Generations
from counters.objects.store import CounterStore
from counters.redis import AnyRedis, connect
from journal_client.scan import TopicScan

NICE = 10
"""How much a task that reads the whole journal gives way to the workers on the same machine."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """Clients and stores of one process."""

    settings: Settings
    redis: AnyRedis
    checkpoints: RedisCheckpoints
    store: CounterStore
    extraction: Extraction

    @property
    def generations(self) -> Generations:
        """Which generations counters have."""
        return Generations(self.redis, self.settings.redis.prefix)

    def bulk_writer(self) -> BulkWriter:
        """Adds keys to counters."""
        return BulkWriter(self.store, self.settings.objects, self.extraction)

    def scan(self) -> TopicScan:
        """Reads topics; to be entered."""
        return TopicScan(self.settings.journal, self.extraction.decoder)


@contextmanager
def workbench(settings: Settings) -> Iterator[Workbench]:
    """Everything that a task needs of the servers."""
    prefix, journal = settings.redis.prefix, settings.journal
    extraction = Extraction(Derived.from_config(settings.objects.derived), journal.prefix)
    with connect(settings.redis) as redis:
        yield Workbench(
            settings,
            redis,
            RedisCheckpoints(redis, prefix),
            CounterStore(redis, prefix, journal.group_id),
            extraction,
        )


def give_way() -> None:
    """Let the workers on this machine go first."""
    os.nice(NICE)
