"""The published counts for Prometheus: the text, and the small server that reads the store on a scrape.

:class:`Reading` is all there is to publish at one moment, :func:`expose` makes the text. ``counters
exporter`` reads when it is scraped, the API publishes what it has read anyway; both export the same families.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from counters import metrics
from counters.checkpoints.model import Checkpoint, Desired
from counters.checkpoints.snapshots import Snapshots
from counters.durability import Durability, read_durability
from counters.errors import CountersError
from counters.history.store import HistoryStore, State
from counters.metrics import Kind, Metric
from counters.objects.reader import CountsReader
from counters.objects.spec import Count
from counters.redis import AnyRedis

logger = logging.getLogger(__name__)

Family = GaugeMetricFamily | CounterMetricFamily
Sample = tuple[Metric, list[str], float]

LEGACY_NAME = "swh_archive_object_total"
"""The family under which swh-counters publishes the counts."""

NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known at one moment.

    Attributes:
        counts: the counts; None if they are not known now.
        age: seconds since counts were last read; None: never.
        errors: attempts to read them that failed since the start.
        problem: why the last attempt failed; None if it did not.
        durability: whether the store keeps them; None: not asked, or no answer.
        history: how old the history is; None: not asked, or no answer.
        tasks: how the tasks are; None: not asked, or no answer.
    """

    counts: Sequence[Count] | None = None
    age: float | None = None
    errors: int = 0
    problem: str | None = None
    durability: Durability | None = None
    history: State | None = None
    tasks: Sequence[Checkpoint] | None = None


class Exposition(StrEnum):
    """The formats a scraper may ask for; the value is the content type."""

    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    TEXT_1 = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
    TEXT_0 = "text/plain; version=0.0.4; charset=utf-8"


_FORMATS = {
    ("application/openmetrics-text", ""): Exposition.OPENMETRICS,
    ("application/openmetrics-text", "1.0.0"): Exposition.OPENMETRICS,
    ("text/plain", "1.0.0"): Exposition.TEXT_1,
    ("text/plain", "0.0.4"): Exposition.TEXT_0,
    ("text/plain", ""): Exposition.TEXT_0,
    ("text/*", ""): Exposition.TEXT_0,
    ("*/*", ""): Exposition.TEXT_0,
}


def negotiate(accept: str) -> Exposition:
    """The format an ``Accept`` header likes best among ours; the oldest one if it likes none.

    Nobody is refused: a person with a browser asks for HTML and can read the text, too.
    """
    liked: list[tuple[float, Exposition]] = []
    for choice in accept.lower().split(","):
        media_type, *parameters = choice.replace(" ", "").split(";")
        given = {name: value for name, _, value in (one.partition("=") for one in parameters)}
        form = _FORMATS.get((media_type, given.get("version", "")))
        with suppress(ValueError):
            quality = float(given.get("q", "1"))
            if form is not None and quality > 0:
                liked.append((quality, form))
    # The first of equals: that is the order in which scrapers prefer them.
    return max(liked, key=lambda one: one[0], default=(1.0, Exposition.TEXT_0))[1]


def expose(reading: Reading, accept: str, *, legacy: bool = False) -> Response:
    """The families of ``reading`` in the format that ``accept`` asks for.

    Args:
        legacy: add the family of swh-counters.
    """
    form = negotiate(accept)
    openmetrics = form is Exposition.OPENMETRICS
    body = (generate_openmetrics if openmetrics else generate_latest)(_Families(reading))
    if legacy:
        # OpenMetrics allows no space between labels, and has an end.
        end = b"# EOF\n" if openmetrics else b""
        family = render_legacy_family(reading.counts or (), separator="," if openmetrics else ", ")
        body = body.removesuffix(end) + family + end
    return Response(body, headers={"content-type": form.value, **NO_STORE})


def render_legacy_family(counts: Iterable[Count], *, separator: str = ", ") -> bytes:
    """The family of swh-counters as that writes it, byte for byte: whole numbers, a space between the labels.

    A count that could not be read or is suspect is left out.
    """
    lines = [
        f"# HELP {LEGACY_NAME} Software Heritage Archive object counters\n# TYPE {LEGACY_NAME} gauge\n",
        *(
            f'{LEGACY_NAME}{{col="value"{separator}object_type="{_escape(count.name)}"}} {count.value}\n'
            for count in counts
            if count.value is not None and not count.suspect
        ),
    ]
    return "".join(lines).encode()


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Families(Collector):
    """One reading as families; made for one scrape."""

    def __init__(self, reading: Reading) -> None:
        self._samples = list(_samples(reading))

    def collect(self) -> Iterator[Family]:
        for metric in metrics.PUBLISHED:
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.documentation, labels=metric.labels)
            for wanted, labels, value in self._samples:
                if wanted is metric:
                    family.add_metric(labels, value)
            yield family


def _samples(reading: Reading) -> Iterator[Sample]:
    """Nothing that is not known now: Prometheus sees that a series stopped, not that a value is repeated."""
    yield metrics.STORE_UNAVAILABLE, [], float(reading.problem is not None)
    yield metrics.READ_ERRORS, [], float(reading.errors)
    if reading.age is not None:
        yield metrics.READ_AGE, [], reading.age
    for count in reading.counts or ():
        for metric, value in _figures(count, reading.age or 0.0):
            yield metric, [count.name], value
    if reading.durability is not None:
        yield from _durability_samples(reading.durability)
    if reading.history is not None:
        yield from _history_samples(reading.history)
    for task in reading.tasks or ():
        yield from _task_samples(task)


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


def _durability_samples(durability: Durability) -> Iterator[Sample]:
    # Without an append-only file, and without knowing the rest, nothing can be said.
    if durability.aof or durability.rdb is not None:
        for mode, works in (("aof", durability.aof), ("rdb", durability.rdb)):
            if works is not None:
                yield metrics.REDIS_PERSISTENCE, [mode], float(works)
    if durability.evicting is not None:
        yield metrics.REDIS_EVICTING, [], float(durability.evicting)


def _history_samples(history: State) -> Iterator[Sample]:
    if history.refreshed is not None:
        yield metrics.HISTORY_AGE, [], max(0.0, history.now - history.refreshed)
    # One that failed from the start has no age, and is the one that somebody has to look at.
    if history.refreshed is not None or history.failure is not None:
        yield metrics.HISTORY_STALE, [], float(history.problem is not None)


def _task_samples(task: Checkpoint) -> Iterator[Sample]:
    yield metrics.TASK_PAUSED, [task.name], float(task.desired is Desired.PAUSED)
    if task.heartbeat_at is not None:
        yield metrics.TASK_LAST_PROGRESS, [task.name], task.heartbeat_at.timestamp()
    for result, items in task.items.items():
        yield metrics.BATCH_ITEMS, [task.name, result], float(items)


class StoreReader:
    """Reads all that a scrape publishes. What is not the counts costs only itself when it fails."""

    def __init__(
        self, redis: AnyRedis, counts: CountsReader, history: HistoryStore, tasks: Snapshots | None = None
    ) -> None:
        self._redis = redis
        self._counts = counts
        self._history = history
        self._tasks = tasks

    def read(self) -> Reading:
        """One reading of now; raises StoreUnavailable if the counts cannot be read."""
        reading = Reading(counts=self._counts.read(), age=0.0)
        with suppress(RedisError, OSError):
            reading = replace(reading, durability=read_durability(self._redis))
        with suppress(CountersError):
            reading = replace(reading, history=self._history.state())
        if self._tasks is not None:
            reading = replace(reading, tasks=self._tasks.exported())
        return reading


class Scrapes:
    """Reads when asked, and answers within ``deadline`` seconds whatever the store does.

    One read at a time: those who ask meanwhile wait for the same one, so a store that hangs ties up one
    thread, however often it is asked. For one event loop.
    """

    def __init__(self, read: Callable[[], Reading], deadline: float) -> None:
        self._read = read
        self._deadline = deadline
        self._flight: Future[Reading] | None = None
        self._failed: Future[Reading] | None = None
        self._errors = 0
        self._read_at: float | None = None

    async def reading(self) -> Reading:
        """What the store says now; without counts, but with the reason, if it does not."""
        flight = self._join()
        await asyncio.wait([asyncio.wrap_future(flight)], timeout=self._deadline)
        reading = flight.result() if flight.done() else Reading(problem=self._late())
        now = time.monotonic()
        if reading.problem is None:
            self._read_at = now
        elif flight is not self._failed:  # however many wait for it
            self._failed = flight
            self._errors += 1
        age = None if self._read_at is None else now - self._read_at
        return replace(reading, age=age, errors=self._errors)

    def _join(self) -> Future[Reading]:
        if self._flight is None or self._flight.done():
            self._flight = Future()
            # A daemon: a read that hangs must not keep the process from ending, and it has nothing to save.
            threading.Thread(target=self._fly, args=[self._flight], name="scrape", daemon=True).start()
        return self._flight

    def _fly(self, flight: Future[Reading]) -> None:
        try:
            reading = self._read()
        except CountersError as error:
            logger.warning("%s", error)
            reading = Reading(problem=str(error))
        except Exception:
            logger.exception("reading the counts failed")
            reading = Reading(problem="internal error; see the log")
        flight.set_result(reading)

    def _late(self) -> str:
        problem = f"Redis did not answer within {self._deadline:g} s; see exporter.deadline"
        logger.warning("%s", problem)
        return problem


def create_exporter(scrapes: Scrapes, *, legacy: bool = False) -> Starlette:
    """``/metrics``, ``/healthz`` and ``/readyz``; with ``legacy``, or asked with ``?legacy=1``, the family of
    swh-counters as well."""

    async def scrape(request: Request) -> Response:
        wanted = legacy or request.query_params.get("legacy") == "1"
        return expose(await scrapes.reading(), request.headers.get("accept", ""), legacy=wanted)

    async def healthz(_: Request) -> Response:
        """200 while the process runs. Never asks the store: a restart would not bring it back."""
        return JSONResponse({"status": "ok"}, headers=NO_STORE)

    async def readyz(_: Request) -> Response:
        problem = (await scrapes.reading()).problem
        reasons = [] if problem is None else [problem]
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200, NO_STORE)

    # Both spellings answer: existing scrape jobs use either, and not all of them follow a redirect.
    handlers = {"/metrics": scrape, "/metrics/": scrape, "/healthz": healthz, "/readyz": readyz}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])
