"""Writes counters into Redis as a worker leaves them behind, for the tests of whatever reads them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from redis import Redis, RedisCluster

from counters.objects.spec import CounterSpec

PREFIX, GROUP, TOPICS = "counters", "readers", "journal.objects"


def numbered(count: int, first: int = 0) -> list[bytes]:
    """``count`` different keys."""
    return [b"key-%d" % number for number in range(first, first + count)]


def publish(
    redis: Redis | RedisCluster,
    spec: CounterSpec,
    keys: Iterable[bytes] = (),
    *,
    messages: int | None = None,
    stamp: int | None = None,
) -> None:
    """Register ``spec`` and add ``keys`` to it, the n-th to stratum n. ``stamp`` is in milliseconds."""
    tag = f"{{{PREFIX}}}"
    strata = spec.keys(PREFIX)
    keys = list(keys)
    for number, stratum in enumerate(strata):
        redis.execute_command("PFADD", stratum, *keys[number :: len(strata)])
    redis.hset(f"{tag}:registry", spec.name, msgspec.json.encode(spec))
    if messages is not None:
        redis.hset(f"{tag}:offsets:{GROUP}", f"{TOPICS}.{spec.name}", messages)
    if stamp is not None:
        redis.hset(f"{tag}:stamps", spec.name, stamp)
