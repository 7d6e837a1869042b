"""The books: every record polled is accounted for, once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from journal_client.ledger import Drop, Ledger, Skip
from journal_client.metrics import JournalMetrics


@pytest.fixture
def ledger() -> Ledger:
    """Ten records of ``a``: four handled, three skipped, two dropped, one open; two of ``b``, open."""
    ledger = Ledger()
    ledger.polled.update(a=10, b=2)
    ledger.handled["a"] = 4
    ledger.skipped["a", Skip.NULL_KEY] = 1
    ledger.skipped["a", Skip.UNDECODABLE] = 2
    ledger.dropped["a", Drop.LOST] = 2
    return ledger


def test_what_is_not_accounted_for_is_open(ledger: Ledger) -> None:
    assert (ledger.open("a"), ledger.open("b"), ledger.open("c")) == (1, 2, 0)


def test_books_that_match_the_open_batch_are_balanced(ledger: Ledger) -> None:
    assert ledger.imbalance({"a": 1, "b": 2}) == {}


def test_an_imbalance_names_the_topic_and_the_difference(ledger: Ledger) -> None:
    assert ledger.imbalance({"b": 3}) == {"a": 1, "b": -1}


def test_the_summary_lists_each_topic_by_fate(ledger: Ledger) -> None:
    assert ledger.summary() == {
        "a": {
            "polled": 10,
            "handled": 4,
            "skipped.null_key": 1,
            "skipped.undecodable_value": 2,
            "dropped.lost": 2,
        },
        "b": {"polled": 2, "handled": 0},
    }


def test_the_metrics_are_the_ledger_itself(ledger: Ledger) -> None:
    registry = CollectorRegistry()
    JournalMetrics(registry, ledger)
    ledger.handled["a"] += 1
    page = generate_latest(registry).decode()
    for line in (
        'journal_records_polled_total{topic="a"} 10.0',
        'journal_records_handled_total{topic="a"} 5.0',
        'journal_records_skipped_total{reason="null_key",topic="a"} 1.0',
        'journal_records_dropped_total{reason="lost",topic="a"} 2.0',
    ):
        assert line in page.splitlines()
