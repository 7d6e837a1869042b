"""What merging, thinning, clipping and down-sampling keep, drop and never do."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counters.history.series import DAY, HOUR, MINUTE, Series, clip, downsample, merge, merge_all, thin

NOW = 1_800_000_123
YEAR_10000 = 253_402_300_800

TIMES = st.integers(0, 2**40)
POINTS = st.lists(st.tuples(TIMES, st.floats(allow_nan=True, allow_infinity=True)), max_size=30)
COUNTS = st.floats(0, 1e12)
CURVE = st.lists(COUNTS, min_size=2, max_size=200).map(
    lambda values: Series.of([(NOW + 10 * n, value) for n, value in enumerate(values)])
)
PAST = st.lists(st.integers(NOW - 120 * DAY, NOW), unique=True, max_size=60).map(
    lambda times: Series.of([(at, 1.0) for at in sorted(times)])
)


def counts(value: float) -> bool:
    return math.isfinite(value) and 0 <= value < 2**63


@given(POINTS, POINTS)
def test_a_merge_has_every_good_point_once_and_in_order(
    first: list[tuple[int, float]], second: list[tuple[int, float]]
) -> None:
    merged = merge(Series.of(first), Series.of(second))
    expected = {at: value for at, value in [*first, *second] if counts(value) and at < YEAR_10000}
    assert merged.points() == sorted(expected.items())


def test_the_later_source_wins_where_both_have_a_point() -> None:
    merged = merge(Series.of([(10, 1.0), (20, 2.0)]), Series.of([(20, 3.0)]))
    assert merged.points() == [(10, 1.0), (20, 3.0)]


def test_a_bad_value_does_not_hide_a_good_one_of_the_same_time() -> None:
    merged = merge(Series.of([(10, 1.0)]), Series.of([(10, math.nan)]))
    assert merged.points() == [(10, 1.0)]


@pytest.mark.parametrize(
    "absurd", [(9 * 10**12, 5.0), (YEAR_10000, 5.0), (-1, 5.0), (20, 1e300), (20, 2.0**63), (20, -1.0)]
)
def test_a_point_that_is_no_count_at_a_date_costs_only_itself(absurd: tuple[int, float]) -> None:
    assert merge(Series.of([(10, 1.0), absurd])).points() == [(10, 1.0)]


def test_gaps_stay_gaps() -> None:
    far = [(0, 1.0), (100 * DAY, 2.0)]
    assert merge(Series.of(far), Series.of()).points() == far


def test_counters_without_a_point_are_left_out() -> None:
    merged = merge_all({"a": Series.of([(1, 1.0)])}, {"b": Series.of([(1, math.inf)]), "c": Series.of()})
    assert list(merged) == ["a"]


@given(PAST)
def test_thinning_keeps_the_last_hour_whole_and_loses_no_half_day(series: Series) -> None:
    thinned = thin(series, NOW)
    assert set(thinned.times.tolist()) >= {at for at in series.times.tolist() if at > NOW - HOUR}
    half_days = [set((one.times // (12 * HOUR)).tolist()) for one in (series, thinned)]
    assert half_days[0] == half_days[1]


@given(PAST, st.integers(0, 100 * DAY))
def test_thinning_often_leaves_what_thinning_once_does(series: Series, later: int) -> None:
    once = thin(series, NOW + later)
    assert thin(thin(series, NOW), NOW + later).points() == once.points()


def test_an_old_half_day_keeps_its_last_point_only() -> None:
    start = (NOW - 200 * DAY) // (12 * HOUR) * (12 * HOUR)
    dense = Series.of([(start + n * MINUTE, float(n)) for n in range(12 * 60)])
    assert thin(dense, NOW).points() == [(start + 719 * MINUTE, 719.0)]


def test_samples_every_five_seconds_stay_below_five_thousand_in_90_days() -> None:
    times = np.arange(NOW - 90 * DAY, NOW, 5)
    assert len(thin(Series(times, np.ones(len(times))), NOW)) < 5_000


@given(CURVE, st.one_of(st.none(), TIMES), st.one_of(st.none(), TIMES))
def test_a_clipped_series_has_the_points_within(series: Series, start: int | None, end: int | None) -> None:
    expected = [
        (at, value)
        for at, value in series.points()
        if (start is None or at >= start) and (end is None or at <= end)
    ]
    assert clip(series, start, end).points() == expected


@pytest.mark.parametrize("method", ["lttb", "minmax"])
@given(series=CURVE, max_points=st.integers(2, 50))
def test_fewer_points_are_points_of_the_series_and_keep_its_ends(
    method: Literal["lttb", "minmax"], series: Series, max_points: int
) -> None:
    fewer = downsample(series, max_points, method)
    assert len(fewer) <= max_points
    points, kept = series.points(), fewer.points()
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert kept == [point for point in points if point in set(kept)]


def textbook(points: list[tuple[int, float]], size: int) -> list[tuple[int, float]]:
    """Largest triangle three buckets, straight from its description."""
    inner = len(points) - 2
    edges = [1 + inner * n // (size - 2) for n in range(size - 1)]
    buckets = [points[a:b] for a, b in pairwise(edges)] + [points[-1:]]
    chosen = [points[0]]
    for bucket, following in pairwise(buckets):
        ax, ay = chosen[-1]
        cx = sum(x for x, _ in following) / len(following)
        cy = sum(y for _, y in following) / len(following)
        areas = [abs((ax - cx) * (y - ay) - (ax - x) * (cy - ay)) / 2 for x, y in bucket]
        chosen.append(bucket[areas.index(max(areas))])
    return [*chosen, points[-1]]


@given(st.integers(1, 20), st.data())
def test_lttb_chooses_as_the_textbook_does(buckets: int, data: st.DataObject) -> None:
    # Buckets of four: their means are exact, and so are the areas to compare.
    size = 4 * buckets + 2
    values = data.draw(st.lists(st.integers(0, 1000), min_size=size, max_size=size))
    points = [(NOW + 10 * n, float(value)) for n, value in enumerate(values)]
    assert downsample(Series.of(points), buckets + 2).points() == textbook(points, buckets + 2)


def test_lttb_keeps_a_lonely_spike() -> None:
    flat = [(n, 1.0) for n in range(1000)]
    flat[421] = (421, 500.0)
    assert (421, 500.0) in downsample(Series.of(flat), 10).points()


@given(CURVE.filter(lambda series: len(series) > 8))
def test_minmax_keeps_the_lowest_and_the_highest(series: Series) -> None:
    values = downsample(series, 8, "minmax").values
    assert (values.min(), values.max()) == (series.values.min(), series.values.max())


def test_one_point_is_too_few_for_a_series() -> None:
    with pytest.raises(ValueError, match="max_points is 1"):
        downsample(Series.of([(1, 1.0), (2, 2.0)]), 1)


def test_a_short_series_stays_as_it_is() -> None:
    series = Series.of([(1, 1.0), (2, 2.0)])
    assert downsample(series, 2) is series
    assert len(downsample(Series.of(), 2)) == 0
