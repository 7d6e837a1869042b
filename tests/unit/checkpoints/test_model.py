"""Names, cursors, counts and states, as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from counters.checkpoints.model import (
    ABSENT,
    HEARTBEAT_AT,
    MAX_NAME,
    RUNNER,
    Checkpoint,
    Desired,
    add_counts,
    check_advance,
    check_name,
    check_operable,
    decode_map,
    encode_counts,
    encode_cursor,
    instant,
    scope,
    wanted,
)
from counters.errors import InputError, StoreError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def checkpoint(desired: Desired = Desired.RUN, observed: str = "idle") -> Checkpoint:
    return Checkpoint("rollup:month", {"row": 7}, {}, desired, observed, NOON, desired_at=NOON)


@pytest.mark.parametrize(
    "name", ["rollup:month", "lot_migration:acct-1.2", "_:_", "a:" + "x" * (MAX_NAME - 2)]
)
def test_an_operation_and_its_scope_make_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["events_backfill", ":global", "CreditExpiry:global", "a b:c", "", "a:", "a1:b", "a:b c", "a:b\n"]
)
def test_anything_else_is_no_name(name: str) -> None:
    with pytest.raises(InputError, match=r"is no name of a task: it must be <operation>:<scope>"):
        check_name(name)


def test_a_name_has_an_end() -> None:
    with pytest.raises(InputError, match=f"has {MAX_NAME + 1} characters, not up to {MAX_NAME}"):
        check_name("a:" + "x" * (MAX_NAME - 1))


@pytest.mark.parametrize("name", ["schema:core", "journal:content"])
def test_an_operator_does_not_change_what_the_system_writes(name: str) -> None:
    with pytest.raises(InputError, match="written by the system"):
        check_operable(name)


def test_an_operator_changes_tasks() -> None:
    assert check_operable("backfill:content") == "backfill:content"


@pytest.mark.parametrize(
    ("text", "part"), [("content", "content"), ("my dump:1/ä.csv", "my-dump-1--.csv"), ("", "-")]
)
def test_any_text_becomes_a_scope(text: str, part: str) -> None:
    assert scope(text) == part
    check_name(f"backfill:{scope(text)}")


def test_the_end_of_a_scan_is_stored_as_no_position() -> None:
    assert encode_cursor(None) == encode_cursor({}) == "{}"
    assert decode_map("a:b", "cursor", "{}") == decode_map("a:b", "cursor", b"") == {}


def test_a_heartbeat_is_no_part_of_the_position() -> None:
    assert encode_cursor({"row": 7, HEARTBEAT_AT: "now", RUNNER: "host/1"}) == '{"row":7}'


def test_counts_are_stored_as_they_are() -> None:
    assert decode_map("a:b", "counts", encode_counts({RUNNER: 1, "ok": 2**70 // 2**8})) == {
        RUNNER: 1,
        "ok": 2**62,
    }


@pytest.mark.parametrize("value", [object(), {1, 2}.__iter__(), 2j])
def test_what_json_cannot_say_is_named(value: object) -> None:
    with pytest.raises(InputError, match=r"the cursor .* cannot be written as JSON"):
        encode_cursor({"value": value})


@pytest.mark.parametrize("text", ["{", "[]", "7", '"x"', b"\xff", '{"a":1}}'])
def test_a_damaged_cursor_names_the_way_out(text: str | bytes) -> None:
    with pytest.raises(
        StoreError, match=r"the cursor of a:b in the store are damaged .* checkpoints delete a:b"
    ):
        decode_map("a:b", "cursor", text)


def test_a_pause_hides_what_the_runner_reports() -> None:
    assert checkpoint(Desired.PAUSED, "running").state == "paused"
    assert checkpoint(Desired.RUN, "running").state == "running"


def test_only_a_paused_task_is_paused_since_a_moment() -> None:
    assert checkpoint(Desired.PAUSED).paused_since == NOON
    assert checkpoint(Desired.RUN).paused_since is None


def test_only_the_state_paused_is_the_operators() -> None:
    assert wanted("paused") == (Desired.PAUSED, None)
    assert [wanted(state) for state in ("idle", "running", "active")] == [
        (None, "idle"),
        (None, "running"),
        (None, "active"),
    ]


def test_numbers_add_up_and_the_newer_of_anything_else_stays() -> None:
    counts: dict[str, object] = {}
    for _ in range(3):
        counts = add_counts(counts, {"examined": 10, "failed": 1})
    assert counts == {"examined": 30, "failed": 3}
    assert add_counts({"last": "a", "on": True, "n": 1}, {"last": "b", "on": True, "m": 0.5}) == {
        "last": "b",
        "on": True,
        "n": 1,
        "m": 0.5,
    }


def test_adding_counts_changes_none_of_the_two() -> None:
    counts, more = {"n": 1}, {"n": 2}
    add_counts(counts, more)
    assert (counts, more) == ({"n": 1}, {"n": 2})


def test_none_is_a_cursor_and_absent_is_none() -> None:
    check_advance(None, ABSENT)
    check_advance(ABSENT, {})
    with pytest.raises(InputError, match="neither a cursor nor counts"):
        check_advance(ABSENT, ABSENT)


def test_a_moment_keeps_its_microseconds() -> None:
    later = 1_772_366_400_000_001
    assert (
        instant(later)
        == instant(str(later))
        == instant(b"1772366400000001")
        == NOON + timedelta(microseconds=1)
    )
