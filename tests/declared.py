"""Every metric that the code declares, under the names that Prometheus stores, with its labels."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from counters.metrics import PUBLISHED, Kind
from counters.objects.metrics import WorkerMetrics
from journal_client.ledger import Drop, Ledger, Skip
from journal_client.metrics import JournalMetrics

TARGET = frozenset({"job", "instance"})
"""Labels that Prometheus adds to everything it scrapes."""

OTHERS: dict[str, frozenset[str]] = {
    "up": TARGET,
    "scrape_duration_seconds": TARGET,
    "process_resident_memory_bytes": TARGET,
    "process_cpu_seconds_total": TARGET,
}
"""What Prometheus itself and the collector of the process add."""


def declared_metrics() -> dict[str, frozenset[str]]:
    """Label names by name of the series."""
    metrics = dict(OTHERS)
    for metric in PUBLISHED:
        suffix = "_total" if metric.kind is Kind.COUNTER else ""
        metrics[metric.name + suffix] = TARGET | set(metric.labels)
    for name, labels in _of_the_worker():
        metrics[name] = metrics.get(name, TARGET) | labels
    return metrics


def _of_the_worker() -> Iterator[tuple[str, set[str]]]:
    ledger = Ledger()
    ledger.polled["t"] = ledger.handled["t"] = 1
    ledger.skipped["t", Skip.NULL_KEY] = ledger.dropped["t", Drop.LOST] = 1
    registry = CollectorRegistry()
    for meters in (WorkerMetrics(registry), JournalMetrics(registry, ledger)):
        for meter in vars(meters).values():
            if isinstance(meter, Counter | Gauge | Histogram):
                _give_a_sample(meter)
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                yield sample.name, set(sample.labels)


def _give_a_sample(meter: Counter | Gauge | Histogram) -> None:
    """A meter with labels shows them only once it has a value."""
    for size in range(1, 4):
        try:
            meter.labels(*["x"] * size)
        except ValueError:
            continue
        return
