"""Counters that swh-counters left in Redis, found by whoever reads them.

A worker adopts the counters that it feeds. A server may run without one, or beside the old journal client,
and has to know the flat keys all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from redis.exceptions import RedisError

from counters.config import Layout, Settings
from counters.objects.reader import CountsReader
from counters.objects.spec import BASE_PRECISION, Count, CounterSpec
from counters.objects.store import CounterStore
from counters.redis import AnyRedis
from journal_client.errors import Unavailable

logger = logging.getLogger(__name__)

ARCHIVE_TYPES = (
    "content",
    "directory",
    "origin",
    "origin_visit",
    "origin_visit_status",
    "person",
    "release",
    "revision",
    "skipped_content",
    "snapshot",
)
"""The names under which swh-counters counts an archive. Nothing asks Redis for every key it has."""


class ReadsCounts(Protocol):
    """Where counts come from."""

    def read(self) -> list[Count]:
        """All counters, ordered by name."""


class AdoptingReader:
    """Registers flat keys as they appear, and reads what ``reader`` reads.

    Costs one more round trip per read while one of ``names`` has no value.
    """

    def __init__(
        self, reader: ReadsCounts, client: AnyRedis, store: CounterStore, names: Collection[str]
    ) -> None:
        self._reader = reader
        self._client = client
        self._store = store
        self._names = frozenset(names)
        self._known: set[str] = set()

    def read(self) -> list[Count]:
        """All registered counters, ordered by name; raises what ``reader`` raises."""
        try:
            self._adopt(sorted(self._names - self._known))
        except (RedisError, OSError, Unavailable) as error:
            # Redis is down, which the read reports, or read-only, which keeps no known count from being read.
            logger.debug("no counters adopted: %s", error)
        counts = self._reader.read()
        # What a wiped Redis lost may come back.
        self._known = {count.name for count in counts if count.value is not None}
        return counts

    def _adopt(self, wanted: Sequence[str]) -> None:
        if not wanted:
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for name in wanted:
                pipeline.exists(name)
            found = [name for name, exists in zip(wanted, pipeline.execute(), strict=True) if exists]
        for name in found:
            spec = CounterSpec(name, BASE_PRECISION, layout=Layout.LEGACY, adopted=True)
            # A foreign value and an empty sketch are no counters to adopt; both are left alone.
            if self._store.is_filled(spec) and self._store.register(spec) == spec:
                logger.info("adopted the key %s of swh-counters", name)


def counts_reader(client: AnyRedis, settings: Settings) -> ReadsCounts:
    """The reader of the published counts; in the legacy layout it adopts what it finds."""
    prefix, journal = settings.redis.prefix, settings.journal
    reader = CountsReader(client, prefix, journal.group_id, journal.prefix)
    if settings.objects.layout is not Layout.LEGACY:
        return reader
    names = {*ARCHIVE_TYPES, *journal.object_types, *settings.objects.derived}
    return AdoptingReader(reader, client, CounterStore(client, prefix, journal.group_id), names)
