"""What the tests of the history look at."""

from __future__ import annotations

from counters.history.store import History, HistoryStore


def points(store: HistoryStore) -> dict[str, list[tuple[int, float]]]:
    """What is published."""
    return {name: series.points() for name, series in loaded(store).series.items()}


def loaded(store: HistoryStore) -> History:
    history = store.load()
    assert history is not None
    return history
