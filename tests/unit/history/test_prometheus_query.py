"""What Prometheus is asked: the windows and the expression."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from counters.history.prometheus import query, windows


@given(st.integers(0, 10**10), st.integers(0, 10**7), st.integers(1, 10**5), st.integers(1, 500))
def test_windows_hold_every_multiple_of_the_step_once(start: int, length: int, step: int, limit: int) -> None:
    end = start + min(length, 2_000 * step)
    found = list(windows(start, end, step, limit))
    points = [at for window in found for at in range(window.start, window.end + 1, step)]
    assert points == list(range(-(-start // step) * step, end + 1, step))
    assert all((window.end - window.start) // step + 1 <= limit for window in found)
    assert all(before.end + step == after.start for before, after in pairwise(found))


def test_no_window_is_above_the_limit_of_prometheus() -> None:
    assert max((w.end - w.start) / 60 + 1 for w in windows(0, 50_000 * 60, 60)) == 10_000


def test_all_types_are_asked_for_at_once_over_a_whole_step() -> None:
    assert query("counters_objects", {"environment": "production"}, 43_200) == (
        'max by (object_type) (last_over_time(counters_objects{environment="production"}[43200s]))'
    )


def test_label_values_are_escaped() -> None:
    labels = {"a": 'x"} or {b="', "b": "\\", "c": "1\n2"}
    assert r'{a="x\"} or {b=\"",b="\\",c="1\n2"}' in query("m", labels, 60)
