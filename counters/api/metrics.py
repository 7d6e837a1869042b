"""``/metrics``: the published counts for Prometheus, from the last read and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from counters import metrics
from counters.api.latest import LatestCounts, View
from counters.metrics import Kind, Metric
from counters.objects.spec import Count

Family = GaugeMetricFamily | CounterMetricFamily
Samples = dict[Metric, list[tuple[list[str], float]]]


class CountsCollector(Collector):
    """Makes the samples at scrape time, out of what every replica reads alike."""

    def __init__(self, latest: LatestCounts) -> None:
        self._latest = latest

    def describe(self) -> Iterator[Family]:
        """The families without samples, so that registering does not read."""
        return map(_family, metrics.PUBLISHED)

    def collect(self) -> Iterator[Family]:
        """The families with their samples."""
        samples = _samples(self._latest.view())
        for metric in metrics.PUBLISHED:
            family = _family(metric)
            for labels, value in samples.get(metric, []):
                family.add_metric(labels, value)
            yield family


def router(latest: LatestCounts) -> APIRouter:
    """``/metrics``, with and without the slash existing scrape jobs use."""
    routes = APIRouter(tags=["metrics"])
    registry = CollectorRegistry()
    registry.register(CountsCollector(latest))

    @routes.get("/metrics")
    @routes.get("/metrics/", include_in_schema=False)
    async def exposition(request: Request) -> Response:
        """The Prometheus or OpenMetrics text format, whichever ``Accept`` asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type, "cache-control": "no-store"})

    return routes


def _family(metric: Metric) -> Family:
    family = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return family(metric.name, metric.documentation, labels=metric.labels)


def _samples(view: View) -> Samples:
    """Nothing that is not known now: Prometheus sees that a series stopped, not that a value is repeated."""
    samples: Samples = {metrics.READ_ERRORS: [([], view.errors)]}
    if view.counts is not None:
        samples[metrics.READ_AGE] = [([], view.age)]
    if view.counts is None or view.stale:
        return samples
    for count in view.counts.values():
        for metric, value in _figures(count, view.age):
            samples.setdefault(metric, []).append(([count.name], value))
    return samples


def _figures(count: Count, age: float) -> Iterator[tuple[Metric, float]]:
    yield metrics.SUSPECT, float(count.suspect)
    yield metrics.UNREADABLE, float(count.value is None)
    if count.value is not None:
        yield metrics.STANDARD_ERROR, count.standard_error
        # A count never falls; one that did is reported, not charted.
        if not count.suspect:
            yield metrics.OBJECTS, float(count.value)
    if count.updated_at is not None:
        yield metrics.AGE, max(0.0, (count.as_of - count.updated_at).total_seconds()) + age
    if count.messages is not None:
        yield metrics.MESSAGES, float(count.messages)
