"""Growth is measured from the last point that is a day old, or from the first there is."""

from __future__ import annotations

import pytest

from counters.api.growth import Growth, growth
from counters.history.series import DAY, Series

NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(NOW - 2 * DAY, 10), (NOW - DAY, 40), (NOW - 60, 90)], Growth(NOW - DAY, 40, 60, per_day=True)),
        ([(NOW - 4 * DAY, 20), (NOW - 60, 90)], Growth(NOW - 4 * DAY, 20, 20, per_day=True)),
        ([(NOW - 3_600, 30), (NOW - 60, 90)], Growth(NOW - 3_600, 30, 70, per_day=False)),
        ([(NOW + 5, 100)], Growth(NOW + 5, 100, 0, per_day=False)),
    ],
)
def test_growth_is_per_day_once_a_day_is_known(points: list[tuple[int, float]], expected: Growth) -> None:
    assert growth(Series.of(points), 100, NOW) == expected


@pytest.mark.parametrize("series", [None, Series.of()])
def test_without_a_point_there_is_no_growth(series: Series | None) -> None:
    assert growth(series, 100, NOW) is None
