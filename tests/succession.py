"""Counters with a successor: what is registered and held, and a worker that has yet to learn of it."""

from __future__ import annotations

import numpy as np
import pytest
from counting import STORE, Worker, batch
from redis import Redis

from counters.objects.sketch import Registers, read_blob
from counters.objects.spec import CounterSpec, decode_spec
from journal_client.batch import Partition
from journal_client.errors import StalePosition

PREFIX = "journal.objects"
TOPIC = f"{PREFIX}.content"
FIRST = Partition(TOPIC, 0)
REGISTRY = f"{{{STORE}}}:registry"


def held(redis: Redis, spec: CounterSpec | None) -> Registers:
    """The registers of one generation, flat."""
    assert spec is not None
    return np.concatenate([read_blob(blob) for blob in redis.mget(spec.keys(STORE))])


def registered(redis: Redis, counter: str = "content") -> CounterSpec:
    """The counter as the registry has it."""
    return decode_spec(redis.hget(REGISTRY, counter))


def strata(redis: Redis) -> list[str]:
    """Every stratum that exists, of whatever counter and generation."""
    return sorted(key.decode() for key in redis.scan_iter(f"{{{STORE}}}:hll:*"))


def late(counting: Worker, keys: list[bytes], end: int) -> None:
    """Hand over a batch that the view refuses first, since the worker does not know the counter as it is."""
    with pytest.raises(StalePosition):
        counting.handler.handle(batch(TOPIC, keys, {0: end}))
    counting.handler.handle(batch(TOPIC, keys, {0: end}))
