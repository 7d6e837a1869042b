"""What an operator sees: the tasks of every store, and beside them where the view stands in the journal."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from counters.answering import answering
from counters.checkpoints.model import Checkpoint, Desired, instant, scope
from counters.checkpoints.operations import Operations
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import Settings
from counters.redis import AnyRedis

ACTIVE = "active"
"""The state of a view: its workers follow the journal whenever there are some."""


def make_operations(settings: Settings, redis: AnyRedis) -> Operations:
    """The tasks of every store that the settings name, and the rows of the system."""
    stores = [RedisCheckpoints(redis, settings.redis.prefix)]
    return Operations(stores, functools.partial(journal_rows, redis, settings))


def journal_rows(redis: AnyRedis, settings: Settings) -> list[Checkpoint]:
    """The row of the consumer group: next offset per partition, records counted per topic, and when a counter
    was last written to. There is none before the group has read anything.

    Raises:
        StoreUnavailable: Redis does not answer.
        StoreError: it holds something else.
    """
    tag, group = f"{{{settings.redis.prefix}}}", settings.journal.group_id
    offsets = _fields(redis, f"{tag}:offsets:{group}")
    if not offsets:
        return []
    stamps = _fields(redis, f"{tag}:stamps")
    written = max((int(stamp) for stamp in stamps.values() if stamp.isdigit()), default=0) * 1_000
    position: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for field, value in sorted(offsets.items()):
        topic, _, partition = field.rpartition(":")
        # What is no number is shown as it is: whoever looks here may be looking for that.
        number = int(value) if value.isdigit() else value
        if topic:
            position[f"{topic}[{partition}]"] = number
        else:
            counts[field] = number
    return [
        Checkpoint(
            name=f"journal:{scope(group)}",
            position=position,
            counts=counts,
            desired=Desired.RUN,
            observed=ACTIVE,
            updated_at=instant(written),
            heartbeat_at=instant(written) if written else None,
        )
    ]


def _fields(redis: AnyRedis, key: str) -> Mapping[str, str]:
    with answering(key):
        found: Any = redis.hgetall(key)
    return {field.decode(errors="replace"): value.decode(errors="replace") for field, value in found.items()}
