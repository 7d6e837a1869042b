"""Points in time and what is done with them. Pure: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MINUTE, HOUR, DAY = 60, 3_600, 86_400

TIERS = ((HOUR, MINUTE), (DAY, HOUR), (90 * DAY, 12 * HOUR))
"""Pairs of age and interval, in seconds: what is older than the age keeps one point per interval. Each
interval divides the next, so that thinning often leaves the same points as thinning once."""


TIMES_END = 253_402_300_800
"""Unix seconds of the year 10,000, where dates end."""

VALUES_END = 2.0**63
"""What counts fit in wherever they go from here."""

PRESELECTED = 4
"""Points per point wanted that the slower method looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Points of one counter, in order of time.

    Attributes:
        times: Unix seconds, shape (n,).
        values: the count at that time, shape (n,).
    """

    times: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]] = ()) -> Series:
        """A series of pairs of Unix seconds and value."""
        times, values = zip(*points, strict=True) if points else ((), ())
        return cls(np.array(times, np.int64), np.array(values, np.float64))

    def __len__(self) -> int:
        return len(self.times)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Series:
        """The points at these indices, or where the mask is set."""
        return Series(self.times[which], self.values[which])

    def points(self) -> list[tuple[int, float]]:
        """Pairs of Unix seconds and value."""
        return list(zip(self.times.tolist(), self.values.tolist(), strict=True))


def merge(*sources: Series) -> Series:
    """All points of ``sources``: sorted, one per time; where several have the same time the last source wins.

    What cannot be a count at a date is dropped: one absurd point must not keep all others from being
    published. Nothing is invented where there are none.
    """
    times = np.concatenate([source.times for source in sources])
    values = np.concatenate([source.values for source in sources])
    good = (values >= 0) & (values < VALUES_END) & (times >= 0) & (times < TIMES_END)  # NaN is neither
    times, values = times[good], values[good]
    order = np.argsort(times, kind="stable")  # stable: of equal times the last source's comes last
    times, values = times[order], values[order]
    last = np.ones(len(times), np.bool_)
    last[:-1] = times[1:] != times[:-1]
    return Series(times[last], values[last])


def merge_all(*sources: Mapping[str, Series]) -> dict[str, Series]:
    """:func:`merge` for each counter that any of ``sources`` has; counters without a point are left out."""
    names = sorted({name for source in sources for name in source})
    merged = {name: merge(*(source[name] for source in sources if name in source)) for name in names}
    return {name: series for name, series in merged.items() if len(series)}


def thin(series: Series, now: int, tiers: Sequence[tuple[int, int]] = TIERS) -> Series:
    """Fewer points the older they are: of each interval of a tier the last one stays.

    A point belongs to a tier once the whole interval around it is old enough; intervals are multiples of
    themselves since the epoch.
    """
    times = series.times
    interval = np.ones(len(times), np.int64)
    for age, every in tiers:
        ends = (times // every + 1) * every
        interval = np.where(ends <= now - age, every, interval)
    number = times // interval
    last = np.ones(len(times), np.bool_)
    last[:-1] = (number[1:] != number[:-1]) | (interval[1:] != interval[:-1])
    return series.take(last)


def clip(series: Series, start: int | None = None, end: int | None = None) -> Series:
    """The points from ``start`` to ``end``, Unix seconds, both included; None: no limit."""
    first = 0 if start is None else int(np.searchsorted(series.times, start, "left"))
    last = len(series) if end is None else int(np.searchsorted(series.times, end, "right"))
    return series.take(slice(first, last))


def downsample(series: Series, max_points: int, method: Literal["lttb", "minmax"] = "lttb") -> Series:
    """At most ``max_points`` (2 or more) of the points of ``series``, first and last among them.

    ``lttb`` keeps the shape of a curve, ``minmax`` the lowest and highest value of each stretch. Of very many
    points ``lttb`` looks at the extremes only, which the eye cannot tell and which takes a fraction of the
    time (Van Der Donckt et al., *MinMaxLTTB*, 2023).

    Raises:
        ValueError: ``max_points`` is below 2.
    """
    if max_points < 2:
        raise ValueError(f"max_points is {max_points}, but a series keeps at least its first and last point")
    if len(series) <= max_points:
        return series
    if method == "minmax":
        return series.take(_extremes(series, max_points))
    if len(series) > PRESELECTED * max_points:
        series = series.take(_extremes(series, PRESELECTED * max_points))
    return series.take(_largest_triangles(series, max_points))


def _largest_triangles(series: Series, max_points: int) -> NDArray[np.intp]:
    """Largest triangle, three buckets: Steinarsson, *Downsampling time series for visual representation*
    (2013), section 4.2.

    Of each bucket the point is chosen that spans the largest triangle with the point chosen before and the
    mean of the next bucket. Plain floats: buckets are small, and a call of numpy for each costs more.
    """
    last = len(series) - 1
    # Relative to the first point, products of seconds and counts keep their digits.
    times = (series.times - series.times[0]).astype(np.float64)
    values = series.values - series.values[0]
    edges = 1 + (last - 1) * np.arange(max_points - 1) // max(1, max_points - 2)
    after = np.append(edges[1:], last + 1)  # the bucket after the last is the last point alone
    mean_x, mean_y = (np.add.reduceat(one, edges)[1:] / np.diff(after) for one in (times, values))
    xs, ys, bounds = times.tolist(), values.tolist(), edges.tolist()
    chosen, x, y = [0], xs[0], ys[0]
    for start, end, to_x, to_y in zip(bounds, bounds[1:], mean_x.tolist(), mean_y.tolist(), strict=False):
        dx, dy = x - to_x, to_y - y
        rest = dx * y + x * dy
        areas = [abs(dx * b + dy * a - rest) for a, b in zip(xs[start:end], ys[start:end], strict=True)]
        at = start + areas.index(max(areas))
        chosen.append(at)
        x, y = xs[at], ys[at]
    return np.array([*chosen, last], np.intp)


def _extremes(series: Series, max_points: int) -> NDArray[np.intp]:
    """First, last, and the lowest and highest point of each of ``(max_points - 2) // 2`` buckets between."""
    last = len(series) - 1
    ends = np.array([0, last], np.intp)
    buckets = (max_points - 2) // 2
    if buckets == 0:
        return ends
    inner = np.arange(1, last)
    bucket = (inner - 1) * buckets // (last - 1)
    # Sorted by value within each bucket: its first is the lowest, its last the highest.
    order = inner[np.lexsort((series.values[1:last], bucket))]
    edges = np.flatnonzero(np.diff(bucket)) + 1
    lowest, highest = order[np.r_[0, edges]], order[np.r_[edges - 1, len(order) - 1]]
    return np.unique(np.concatenate([ends, lowest, highest]))
