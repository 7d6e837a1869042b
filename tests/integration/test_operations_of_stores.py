"""One operator's surface over several stores."""

from __future__ import annotations

import pytest
from redis import Redis

from counters.checkpoints.model import AlreadyRunning, Checkpoint, Desired, NotFound, instant
from counters.checkpoints.operations import Operations
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.errors import InputError

POSITIONS = Checkpoint("journal:readers", {"a[0]": 5}, {}, Desired.RUN, "active", instant(1))
UNKNOWN = "backfill:origin"


@pytest.fixture
def stores(redis_client: Redis) -> list[RedisCheckpoints]:
    """Two stores with a task each."""
    stores = [RedisCheckpoints(redis_client, prefix) for prefix in ("first", "second")]
    stores[0].advance("verify:content", {"at": 1})
    stores[1].advance("backfill:content", {"at": 2})
    return stores


@pytest.fixture
def operations(stores: list[RedisCheckpoints]) -> Operations:
    return Operations(stores, lambda: [POSITIONS])


def test_the_rows_of_all_stores_and_of_the_system_are_one_list(operations: Operations) -> None:
    names = [row.name for row in operations.list()]
    assert names == ["backfill:content", "journal:readers", "verify:content"]


def test_a_reserved_row_of_a_store_is_seen_and_not_changed(
    operations: Operations, stores: list[RedisCheckpoints]
) -> None:
    stores[0].put("schema:core", {"version": 3}, {}, "idle")
    assert operations.show("schema:core").system
    for change in (operations.pause, operations.resume, operations.rewind, operations.delete):
        with pytest.raises(InputError, match="written by the system"):
            change("schema:core")
    assert stores[0].get("schema:core") is not None


def test_a_task_is_changed_in_the_store_that_has_it(
    operations: Operations, stores: list[RedisCheckpoints]
) -> None:
    operations.pause("backfill:content")
    operations.rewind("backfill:content", {"at": 7})
    assert (stores[1].paused("backfill:content"), stores[0].get("backfill:content")) == (True, None)
    assert operations.show("backfill:content").cursor == {"at": 7}
    operations.resume("backfill:content")
    assert not stores[1].paused("backfill:content")


def test_a_task_that_is_in_none_is_paused_in_the_first(
    operations: Operations, stores: list[RedisCheckpoints]
) -> None:
    operations.pause(UNKNOWN)
    assert (stores[0].paused(UNKNOWN), stores[1].get(UNKNOWN)) == (True, None)


def test_what_is_not_there_is_neither_shown_nor_resumed_nor_rewound(operations: Operations) -> None:
    for ask in (operations.show, operations.resume, operations.rewind):
        with pytest.raises(NotFound, match="no task backfill:origin"):
            ask(UNKNOWN)
    assert operations.delete(UNKNOWN) is False


def test_a_claim_is_found_in_whichever_store_it_is(
    operations: Operations, stores: list[RedisCheckpoints]
) -> None:
    with stores[1].claim("backfill:content", "ann/17"):
        assert str(operations.show("backfill:content").holder).startswith("ann/17")
        with pytest.raises(AlreadyRunning, match="ann/17"):
            operations.delete("backfill:content")
    assert operations.delete("backfill:content")
    assert stores[1].get("backfill:content") is None


def test_a_cursor_that_is_too_long_or_no_json_is_refused(operations: Operations) -> None:
    for cursor in ({"a": "x" * 70_000}, {"a": object()}):
        with pytest.raises(InputError, match="cursor"):
            operations.rewind("backfill:content", cursor)
    assert operations.show("backfill:content").cursor == {"at": 2}
