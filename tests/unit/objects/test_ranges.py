"""A range of the journal as the cursor of a task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from counters.errors import InputError
from counters.objects.ranges import Range, progress_of
from journal_client.assignment import Watermarks
from journal_client.batch import Batch, Partition

FIRST, SECOND = Partition("a:b.content", 0), Partition("a:b.content", 11)
WHOLE = Range.between({FIRST: Watermarks(100, 300), SECOND: Watermarks(0, 50)})


def test_a_range_begins_at_the_low_watermarks_and_ends_at_the_high_ones() -> None:
    assert WHOLE.starts == WHOLE.next_offsets == {FIRST: 100, SECOND: 0}
    assert WHOLE.ends == {FIRST: 300, SECOND: 50}
    assert WHOLE.progress() == (0, 250)


def test_a_batch_moves_its_own_partitions_only() -> None:
    after = WHOLE.after(Batch(next_offsets={FIRST: 200}))
    assert after.next_offsets == {FIRST: 200, SECOND: 0}
    assert (after.starts, after.ends) == (WHOLE.starts, WHOLE.ends)
    assert after.progress() == (100, 250)


def test_a_range_comes_back_from_its_cursor_whatever_the_topic_is_called() -> None:
    after = WHOLE.after(Batch(next_offsets={SECOND: 50}))
    cursor = json.loads(json.dumps(after.cursor()))
    topics = [FIRST.topic, SECOND.topic]
    assert Range.of_cursor(cursor, "verify:x", topics) == after
    assert progress_of(cursor) == (50, 250)
    assert (cursor["done"], cursor["total"]) == (50, 250)  # what lists of tasks look for


def test_without_a_range_nothing_is_known_of_the_progress() -> None:
    assert progress_of({}) == (0, None)
    assert progress_of({"done": "x", "total": 5}) == (0, None)


@pytest.mark.parametrize(
    "cursor",
    [
        {},
        {"range": None},
        {"range": []},
        {"range": {"content": [0, 0, 1]}},
        {"range": {"content:x": [0, 0, 1]}},
        {"range": {"content:0": [0, 1]}},
        {"range": {"content:0": 7}},
        {"range": {"content:0": [0, "?", 1]}},
        {"range": {"content:0": [5, 4, 6]}},
        {"range": {"content:0": [0, 7, 6]}},
        {"range": {"content:0": [-2, 0, 6]}},
        {"range": {"content:0": [0, 0, 6], "directory:0": [0, 0, 6]}},
    ],
)
def test_a_cursor_that_says_something_else_is_refused(cursor: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^the cursor of verify:x is none .* checkpoints rewind verify:x$"):
        Range.of_cursor(cursor, "verify:x", ["content"])
