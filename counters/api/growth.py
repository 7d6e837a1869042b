"""How fast a counter grows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from counters.history.series import DAY, Series, clip


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of ``base`` since ``since`` (Unix seconds).

    Attributes:
        amount: objects more: per day, or altogether if less than a day is known.
        per_day: which of the two.
    """

    since: int
    base: int
    amount: int
    per_day: bool


def growth(series: Series | None, value: int, now: float) -> Growth | None:
    """The growth to ``value`` at ``now`` over the last day, or over as long as the history goes back.

    The point of comparison is the last one that is a day old or older. None without any point.
    """
    if series is None or not len(series):
        return None
    before = clip(series, end=int(now) - DAY)
    since, base = before.points()[-1] if len(before) else series.points()[0]
    days = max(0.0, now - since) / DAY
    rise = value - round(base)
    per_day = days >= 1
    return Growth(since, round(base), round(rise / days) if per_day else rise, per_day)
