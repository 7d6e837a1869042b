"""Counts and history as CSV (RFC 4180), for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from counters.api.latest import View
from counters.api.past import Points
from counters.history.series import Series
from counters.objects.spec import Count

COUNT_COLUMNS = (
    "type", "value", "standard_error", "lower", "upper",
    "messages", "updated_at", "as_of", "age_seconds", "stale", "suspect", "reason",
)  # fmt: skip
HISTORY_COLUMNS = ("time", "type", "value")

LINES_AT_ONCE = 2_000
"""Lines of a long table that are made, and kept, at a time: some 80 KiB, in a few milliseconds."""


def counts_table(view: View) -> bytes:
    """One line per counter; what is not known is empty."""
    return _lines([COUNT_COLUMNS, *(_row(count, view) for count in (view.counts or {}).values())])


def history_table(series: Iterable[tuple[str, Series]]) -> Iterator[bytes]:
    """One line per point, counter after counter, in order of time (UTC): in pieces, since it may be long."""
    yield _lines([HISTORY_COLUMNS])
    for name, one in series:
        for first in range(0, len(one), LINES_AT_ONCE):
            points = Points.of(one.take(slice(first, first + LINES_AT_ONCE)))
            yield _lines(
                (datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z"), name, value)
                for time, value in zip(points.times, points.values, strict=True)
            )


def _row(count: Count, view: View) -> Sequence[object]:
    error = None if count.value is None else count.standard_error
    updated_at = None if count.updated_at is None else count.updated_at.isoformat()
    age, stale, suspect = int(view.age), str(view.stale).lower(), str(count.suspect).lower()
    return (
        count.name, count.value, error, count.lower, count.upper,
        count.messages, updated_at, count.as_of.isoformat(), age, stale, suspect, count.reason,
    )  # fmt: skip


def _lines(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _harmless(cell: object) -> object:
    """Spreadsheets run text that begins like a formula; an apostrophe makes them show it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
