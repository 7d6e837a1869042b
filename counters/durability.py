"""Whether a Redis keeps what it is given: over a restart, and when its memory runs short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError, ResponseError

from counters.redis import AnyRedis


@dataclass(frozen=True, slots=True)
class Durability:
    """What a server says of itself; None where it does not tell (managed servers refuse CONFIG).

    Attributes:
        aof: the append-only file is on, and its last write succeeded.
        rdb: snapshots are scheduled, and the last one succeeded.
        evicting: the policy lets it evict keys that never expire, and counters are such keys.
    """

    aof: bool | None = None
    rdb: bool | None = None
    evicting: bool | None = None


def read_durability(redis: AnyRedis) -> Durability:
    """Ask the server, in one round trip; of a cluster every primary, and the worst answer counts.

    Raises:
        RedisError, OSError: a server does not answer.
    """
    if isinstance(redis, RedisCluster):
        primaries: list[ClusterNode] = redis.get_primaries()  # type: ignore[no-untyped-call]
        return _worst([_ask(redis.get_redis_connection(node)) for node in primaries])
    return _ask(redis)


def judge(persistence: Mapping[str, Any], save_points: str | None, policy: str | None) -> Durability:
    """The verdict on one server.

    Args:
        persistence: that section of INFO.
        save_points: its setting ``save``; None if it does not tell.
        policy: its setting ``maxmemory-policy``; None if it does not tell.
    """
    written = persistence.get("aof_last_write_status", "ok") == "ok"
    saved = persistence.get("rdb_last_bgsave_status", "ok") == "ok"
    return Durability(
        aof=written and bool(persistence.get("aof_enabled")),
        rdb=None if save_points is None else saved and save_points != "",
        evicting=None if policy is None else policy.startswith("allkeys"),
    )


def _ask(redis: Redis) -> Durability:
    with redis.pipeline(transaction=False) as pipeline:
        pipeline.info("persistence")
        pipeline.info("memory")
        pipeline.config_get("save")
        persistence, memory, save = pipeline.execute(raise_on_error=False)
    for answer in (persistence, memory):
        if isinstance(answer, ResponseError):
            return Durability()
        if isinstance(answer, RedisError):
            raise answer
    save_points = None if isinstance(save, Exception) else str(save.get("save", ""))
    return judge(persistence, save_points, memory.get("maxmemory_policy"))


def _worst(nodes: Iterable[Durability]) -> Durability:
    nodes = list(nodes)
    return Durability(
        aof=_fold(all, [node.aof for node in nodes]),
        rdb=_fold(all, [node.rdb for node in nodes]),
        evicting=_fold(any, [node.evicting for node in nodes]),
    )


def _fold(rule: Any, answers: list[bool | None]) -> bool | None:
    return None if not answers or None in answers else rule(answers)
