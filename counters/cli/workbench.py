"""What the commands that run long tasks are made of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import Settings
from counters.objects.bulk import BulkWriter
from counters.objects.derived import Derived
from counters.objects.extraction import Extraction
from counters.objects.generations import Generations
from counters.objects.ranges import Journal
from counters.objects.store import CounterStore
from counters.redis import AnyRedis, connect
from journal_client.scan import TopicScan

NICE = 10
"""How much a task that reads the whole journal gives way to the workers on the same machine."""

_OBJECT_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")


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

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Reads topics."""
        with TopicScan(self.settings.journal, self.extraction.decoder) as scan:
            yield Journal(scan, self.extraction, self.store, self.settings.objects.derived)


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


def check_type(_context: click.Context, _argument: click.Parameter, value: str) -> str:
    """Checks the argument TYPE: it becomes part of a topic's name, of keys, and of a task's name."""
    if not _OBJECT_TYPE.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not made of letters, digits and _ . - only")
    return value


def give_way() -> None:
    """Let the workers on this machine go first."""
    os.nice(NICE)
