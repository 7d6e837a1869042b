"""Where a partition starts, and who decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal_client.assignment import Origin, Problem, Start, Watermarks, choose_start
from journal_client.config import OffsetReset

EARLIEST, LATEST = OffsetReset.EARLIEST, OffsetReset.LATEST
MARKS = Watermarks(10, 20)


@pytest.mark.parametrize(
    ("view", "committed", "reset", "start"),
    [
        # the view first, then the group's commit, then the setting
        (15, 12, EARLIEST, Start(15, Origin.VIEW, 15)),
        (15, None, LATEST, Start(15, Origin.VIEW, 15)),
        (None, 12, LATEST, Start(12, Origin.COMMITTED, 12)),
        (None, None, EARLIEST, Start(10, Origin.RESET, 10)),
        (None, None, LATEST, Start(20, Origin.RESET, 20)),
        # the watermarks themselves are good positions
        (10, None, LATEST, Start(10, Origin.VIEW, 10)),
        (20, None, EARLIEST, Start(20, Origin.VIEW, 20)),
        # one beyond is not
        (9, None, LATEST, Start(10, Origin.VIEW, 9, Problem.GAP)),
        (0, 15, LATEST, Start(10, Origin.VIEW, 0, Problem.GAP)),
        (None, 3, LATEST, Start(10, Origin.COMMITTED, 3, Problem.GAP)),
        (21, None, LATEST, Start(10, Origin.VIEW, 21, Problem.RESET_TOPIC)),
        (None, 999, LATEST, Start(10, Origin.COMMITTED, 999, Problem.RESET_TOPIC)),
    ],
)
def test_the_start_is_the_most_trusted_position_the_broker_still_has(
    view: int | None, committed: int | None, reset: OffsetReset, start: Start
) -> None:
    assert choose_start(view, committed, MARKS, reset) == start


def test_an_empty_partition_that_was_read_to_its_end_is_no_problem() -> None:
    assert choose_start(20, None, Watermarks(20, 20), EARLIEST) == Start(20, Origin.VIEW, 20)


offsets = st.none() | st.integers(0, 50)
watermarks = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: Watermarks(*sorted(pair)))


@given(offsets, offsets, watermarks, st.sampled_from(OffsetReset))
@settings(deadline=None, derandomize=True)
def test_the_start_is_always_within_the_watermarks(
    view: int | None, committed: int | None, marks: Watermarks, reset: OffsetReset
) -> None:
    start = choose_start(view, committed, marks, reset)
    assert marks.low <= start.next_offset <= marks.high
    assert (start.problem is None) == (start.next_offset == start.wanted)
