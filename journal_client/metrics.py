"""Every metric of this package: what it means and what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from journal_client.batch import Partition
from journal_client.ledger import Ledger


class LedgerCollector(Collector):
    """The ledger, read at scrape time: the books exist once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        ledger = self._ledger
        # polled == handled + skipped + dropped + what the open batch holds; anything else is a bug: report
        # it.
        polled = CounterMetricFamily("journal_records_polled", "Records received.", labels=["topic"])
        for topic, n in list(ledger.polled.items()):
            polled.add_metric([topic], n)
        yield polled
        handled = CounterMetricFamily(
            "journal_records_handled", "Records whose effect is durable.", labels=["topic"]
        )
        for topic, n in list(ledger.handled.items()):
            handled.add_metric([topic], n)
        yield handled
        # Growing: somebody writes records that cannot be used; look into the quarantine.
        skipped = CounterMetricFamily(
            "journal_records_skipped", "Records set aside for good.", labels=["topic", "reason"]
        )
        for (topic, skip), n in list(ledger.skipped.items()):
            skipped.add_metric([topic, skip], n)
        yield skipped
        # Bursts at rebalances are normal; growing without them, two workers fight over the same positions.
        dropped = CounterMetricFamily(
            "journal_records_dropped", "Records put back to be read again.", labels=["topic", "reason"]
        )
        for (topic, drop), n in list(ledger.dropped.items()):
            dropped.add_metric([topic, drop], n)
        yield dropped


class JournalMetrics:
    """The meters of one reader, in one registry."""

    def __init__(self, registry: CollectorRegistry, ledger: Ledger) -> None:
        self.registry = registry
        registry.register(LedgerCollector(ledger))
        # Records behind the end, per partition. Absent while unknown. Growing for hours: add workers.
        self.lag = Gauge(
            "journal_lag_records", "Records not read yet.", ["topic", "partition"], registry=registry
        )
        # The offset read next. Flat while lag grows: the partition is stalled.
        self.position = Gauge(
            "journal_next_offset", "The offset read next.", ["topic", "partition"], registry=registry
        )
        # How fresh the view is: the time of the newest record handled. Compare with time().
        self.newest = Gauge(
            "journal_newest_record_timestamp_seconds", "Time of the newest record handled.", registry=registry
        )
        # How long the store takes per batch. Rising: the store is the bottleneck, not Kafka.
        self.handle_seconds = Histogram(
            "journal_handle_seconds",
            "Seconds to make a batch durable.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        # Far below batch.max_messages under lag: max_bytes or max_seconds closes the batches.
        self.batch_records = Histogram(
            "journal_batch_records",
            "Records per batch.",
            buckets=(1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
            registry=registry,
        )
        # kind: assigned, revoked, lost. Several an hour without deployments: members die or are too slow.
        self.rebalances = Counter("journal_rebalances", "Rebalance callbacks.", ["kind"], registry=registry)
        # A position below the low watermark: records expired unread. Data is missing from the view.
        self.gaps = Counter(
            "journal_gaps", "Times records expired before they were read.", ["topic"], registry=registry
        )
        self.gap_records = Counter(
            "journal_gap_records", "Records that expired before they were read.", ["topic"], registry=registry
        )
        # A position above the high watermark: the topic was deleted and created anew.
        self.topic_resets = Counter(
            "journal_topic_resets", "Times a topic was shorter than read.", ["topic"], registry=registry
        )
        # The view stood elsewhere: its store was restored, wiped or has another owner. See the log for which.
        self.stale_positions = Counter(
            "journal_stale_positions", "Batches refused by the view.", ["reason"], registry=registry
        )
        # 1 while the store does not take batches; the worker holds one batch and polls on.
        self.store_unavailable = Gauge(
            "journal_store_unavailable", "1 while the store takes no batches.", registry=registry
        )
        # Errors reported by librdkafka, by name. Look at those that do not stop.
        self.errors = Counter("journal_errors", "Errors reported by librdkafka.", ["code"], registry=registry)
        # 1 for each subscribed topic the broker does not know: a typo, or nothing was written yet.
        self.topic_missing = Gauge(
            "journal_topic_missing",
            "1 for a subscribed topic that does not exist.",
            ["topic"],
            registry=registry,
        )
        # Partitions with records waiting and no progress for journal.stall_after seconds: restart, then
        # report.
        self.stalled = Gauge(
            "journal_stalled_partitions", "Partitions with lag and no progress.", registry=registry
        )
        # Partitions this member reads. 0 on a standby.
        self.assigned = Gauge("journal_assigned_partitions", "Partitions of this member.", registry=registry)

    def progress(self, partition: Partition, next_offset: int, high: int) -> None:
        """Publish how far ``partition`` is read, of what the broker has up to ``high``."""
        self.lag.labels(*partition).set(max(0, high - next_offset))
        self.position.labels(*partition).set(next_offset)

    def forget(self, partition: Partition) -> None:
        """``partition`` is somebody else's now; two members must not publish its lag."""
        for gauge in (self.lag, self.position):
            with contextlib.suppress(KeyError):  # it never moved while it was ours
                gauge.remove(*partition)
