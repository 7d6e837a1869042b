"""What an operator sees: the tasks of every store, and beside them where the view stands in the journal."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from counters.answering import answering
from counters.checkpoints.model import Checkpoint, Desired, instant, scope
from counters.checkpoints.operations import Operations
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.store import Checkpoints
from counters.config import Settings, SqlSettings
from counters.errors import SettingsError
from counters.redis import AnyRedis

if TYPE_CHECKING:
    from sqlalchemy import Engine

ACTIVE = "active"
"""The state of a view: its workers follow the journal whenever there are some."""


def make_operations(settings: Settings, redis: AnyRedis) -> Operations:
    """The tasks of every store that the settings name, and the rows of the system."""
    stores: list[Checkpoints] = [RedisCheckpoints(redis, settings.redis.prefix)]
    if settings.sql.url is not None:
        stores.append(_sql_checkpoints(settings.sql))
    return Operations(stores, functools.partial(journal_rows, redis, settings))


def create_tables(settings: SqlSettings) -> None:
    """Make the tables of checkpoints in the database that the settings name, where they are missing.

    Raises:
        SettingsError: they name none.
    """
    if settings.url is None:
        raise SettingsError("no database is configured; set sql.url")
    engine = _engine(settings)
    from counters.checkpoints.sql_store import create_schema

    create_schema(engine)


def _sql_checkpoints(settings: SqlSettings) -> Checkpoints:
    engine = _engine(settings)
    from counters.checkpoints.sql_store import SqlCheckpoints

    return SqlCheckpoints(engine)


def _engine(settings: SqlSettings) -> Engine:
    try:
        from counters.sql import connect
    except ImportError as error:
        raise SettingsError(f"sql.url needs pip install 'counters[sql]' ({error})") from error
    assert settings.url is not None
    try:
        return connect(settings.url.get_secret_value(), settings.timeout)
    except SettingsError as error:
        raise SettingsError(f"{error}; change sql.url") from error


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
