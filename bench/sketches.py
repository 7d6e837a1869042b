"""What needs no journal: how many keys go to Redis, and how exact the counts are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import sqrt
from typing import NamedTuple

import numpy as np
import redis
from prometheus_client import CollectorRegistry

from counters.config import ObjectsSettings
from counters.objects.metrics import WorkerMetrics
from counters.objects.reader import CountsReader
from counters.objects.store import CounterStore
from counters.objects.worker import CountingHandler
from journal_client.batch import Batch, Partition

PRECISIONS = (14, 16, 18)
DECADES = (10_000, 100_000, 1_000_000, 10_000_000)
SETS = 20
KEYS_PER_SET = 200_000

BATCH = 10_000
"""Keys per batch: what a worker that is never behind sees at most."""

_KEY = 20


class Feed:
    """One counter of its own in an empty Redis, fed with different keys past the journal."""

    def __init__(self, client: redis.Redis, precision: int, seed: int) -> None:
        client.flushdb()
        self._client = client
        self._registry = CollectorRegistry()
        settings = ObjectsSettings(precision=precision, derived={})
        store = CounterStore(client, "bench", "bench")
        self._handler = CountingHandler(store, settings, "bench", WorkerMetrics(self._registry))
        self._reader = CountsReader(client, "bench", "bench", "bench")
        self._handler.positions([_PARTITION])  # a worker asks before it reads
        self._batches = _batches(seed)
        self.read = 0

    def until(self, number: int) -> None:
        """Feed until ``number`` keys were read, in whole batches."""
        while self.read < number:
            keys = next(self._batches)
            self.read += len(keys)
            self._handler.handle(Batch(keys={"bench.key": keys}, next_offsets={_PARTITION: self.read}))

    def total(self, meter: str) -> int:
        """The worker's ``counters_<meter>_total`` so far."""
        return int(self._registry.get_sample_value(f"counters_{meter}_total", {"counter": "key"}) or 0)

    @property
    def bytes_received(self) -> int:
        """What Redis received so far, from whoever it was."""
        return int(self._client.info("stats")["total_net_input_bytes"])

    @property
    def estimate(self) -> int:
        """How many different keys Redis has seen."""
        (found,) = self._reader.read()
        return found.value or 0


_PARTITION = Partition("bench.key", 0)


class Sent(NamedTuple):
    """What went to Redis until a number of different keys was read."""

    read: int
    keys: float
    """Keys sent, per key read."""
    raised: float
    """Registers raised, by a key or within a sketch, per key read."""
    size: float
    """Bytes that Redis received, per key read."""


def keys_sent(client: redis.Redis, precision: int) -> Iterator[Sent]:
    """What went to Redis up to each of ``DECADES``."""
    feed = Feed(client, precision, seed=precision)
    before = feed.bytes_received
    for decade in DECADES:
        feed.until(decade)
        received = feed.bytes_received - before
        keys, raised = feed.total("keys_sent"), feed.total("registers_raised")
        yield Sent(feed.read, keys / feed.read, raised / feed.read, received / feed.read)


def error(client: redis.Redis, precision: int) -> float:
    """Root mean square of the relative errors of ``SETS`` counts of ``KEYS_PER_SET`` keys (a fraction)."""
    squares = 0.0
    for number in range(SETS):
        feed = Feed(client, precision, seed=1000 + number)
        feed.until(KEYS_PER_SET)
        squares += (feed.estimate / feed.read - 1) ** 2
    return sqrt(squares / SETS)


def _batches(seed: int) -> Iterator[list[bytes]]:
    """Random keys: of 160 bits, all different."""
    rng = np.random.default_rng(seed)
    for _ in count():
        block = rng.bytes(_KEY * BATCH)
        yield [block[i : i + _KEY] for i in range(0, len(block), _KEY)]
