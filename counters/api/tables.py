"""Counts and history as CSV (RFC 4180), for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from counters.api.past import Points
from counters.history.series import Series
from counters.objects.spec import Count

COUNT_COLUMNS = (
    "type", "value", "standard_error", "lower", "upper",
    "messages", "updated_at", "as_of", "suspect", "reason",
)  # fmt: skip
HISTORY_COLUMNS = ("time", "type", "value")


def counts_table(counts: Iterable[Count]) -> bytes:
    """One line per counter; what is not known is empty."""
    return _table(COUNT_COLUMNS, map(_row, counts))


def history_table(series: Iterable[tuple[str, Series]]) -> bytes:
    """One line per point, counter after counter, in order of time (UTC)."""
    rows = (
        (datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z"), name, value)
        for name, one in series
        for time, value in _pairs(one)
    )
    return _table(HISTORY_COLUMNS, rows)


def _pairs(series: Series) -> Iterable[tuple[int, int]]:
    points = Points.of(series)
    return zip(points.times, points.values, strict=True)


def _row(count: Count) -> Sequence[object]:
    error = None if count.value is None else count.standard_error
    updated_at = None if count.updated_at is None else count.updated_at.isoformat()
    suspect = str(count.suspect).lower()
    return (
        count.name, count.value, error, count.lower, count.upper,
        count.messages, updated_at, count.as_of.isoformat(), suspect, count.reason,
    )  # fmt: skip


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _harmless(cell: object) -> object:
    """Spreadsheets run text that begins like a formula; an apostrophe makes them show it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
