"""A counting worker over a real Redis, and what its counters must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from prometheus_client import CollectorRegistry
from redis import Redis

from counters.config import ObjectsSettings
from counters.objects.metrics import WorkerMetrics
from counters.objects.sketch import REGISTERS, Registers, hash_keys, locate, read_blob
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore
from counters.objects.worker import CountingHandler
from journal_client.batch import Batch, Partition

STORE = "counters"
"""First part of the keys."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One member of ``group`` with its view."""

    handler: CountingHandler
    registry: CollectorRegistry

    def handle(self, batch: Batch) -> None:
        """Settle the partitions of ``batch`` and hand it over."""
        self.handler.positions(batch.next_offsets)
        self.handler.handle(batch)

    def raised(self, counter: str) -> int:
        """Registers that this worker found too low in its mirror, and had Redis raise, so far."""
        value = self.registry.get_sample_value("counters_registers_raised_total", {"counter": counter})
        return int(value or 0)


def worker(redis: Redis, group: str, topic_prefix: str, **settings: object) -> Worker:
    """A worker that counts nothing derived unless told otherwise."""
    registry = CollectorRegistry()
    objects = ObjectsSettings.model_validate({"derived": {}} | settings)
    store = CounterStore(redis, STORE, group)
    return Worker(CountingHandler(store, objects, topic_prefix, WorkerMetrics(registry)), registry)


def expected(keys: Iterable[bytes], precision: int) -> Registers:
    """The registers of a counter that saw ``keys``: flat, computed without Redis."""
    registers = np.zeros(1 << precision, np.uint8)
    np.maximum.at(registers, *locate(hash_keys(list(keys)), precision))
    return registers


def stored(redis: Redis, counter: str, precision: int) -> Registers:
    """The registers of a native counter in Redis, flat."""
    blobs = redis.mget(CounterSpec(counter, precision).keys(STORE))
    assert all(blob is not None for blob in blobs)
    registers = np.concatenate([read_blob(blob) for blob in blobs])
    assert len(registers) == REGISTERS * len(blobs)
    return registers


def batch(topic: str, keys: list[bytes], ends: Mapping[int, int]) -> Batch:
    """A batch of ``keys`` after which the partitions of ``topic`` stand at ``ends``."""
    return Batch(keys={topic: keys}, next_offsets={Partition(topic, n): end for n, end in ends.items()})


def positions(redis: Redis, group: str) -> dict[str, int]:
    """Everything a group keeps: positions by ``<topic>:<partition>`` and records counted by ``<topic>``."""
    return {field.decode(): int(n) for field, n in redis.hgetall(f"{{{STORE}}}:offsets:{group}").items()}
