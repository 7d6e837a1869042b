"""The history as a real Prometheus tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from histories import points
from published import GROUP, PREFIX, TOPICS, numbered, publish
from real_prometheus import Sample, backfill, prometheus, require_prometheus
from redis import Redis
from serving import running

from counters.api.app import create_app
from counters.config import HistorySettings, Settings
from counters.history.prometheus import PrometheusSource
from counters.history.refresh import Outcome, Refresher, Result
from counters.history.store import HistoryStore
from counters.objects.reader import CountsReader
from counters.objects.spec import CounterSpec
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

pytestmark = pytest.mark.xdist_group("prometheus")

DAY = 86_400
STEP = DAY // 2
LAST = int(time.time()) // STEP * STEP
"""The last whole half-day."""

HALF_DAYS = range(LAST - 39 * STEP, LAST + 1, STEP)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory for the data of a Prometheus."""
    require_prometheus()
    return tmp_path / "data"


@pytest.fixture
def store(redis_client: Redis) -> HistoryStore:
    return HistoryStore(redis_client, PREFIX)


def refresh(store: HistoryStore, url: str, **settings: object) -> Outcome:
    given = HistorySettings.model_validate({"url": url, **settings})
    return Refresher(store, PrometheusSource(given), given).refresh()


def half_days(labels: str = 'object_type="content"', factor: int = 1) -> Iterator[Sample]:
    """One sample in each of the half-days, an hour before its end."""
    for number, at in enumerate(HALF_DAYS):
        yield "counters_objects{" + labels + "}", at - 3600, (number + 1) * factor


def test_no_point_is_missing_although_the_step_is_longer_than_the_look_back(
    store: HistoryStore, data: Path
) -> None:
    backfill(data, half_days())
    with prometheus(data) as url:
        assert refresh(store, url).result is Result.REFRESHED
        plain = httpx.get(
            f"{url}/api/v1/query_range",
            params={"query": "counters_objects", "start": HALF_DAYS[0], "end": LAST, "step": STEP},
        )
    assert points(store) == {"content": [(at, float(n + 1)) for n, at in enumerate(HALF_DAYS)]}
    assert plain.json()["data"]["result"] == []


def test_replicas_count_once_and_other_labels_not_at_all(store: HistoryStore, data: Path) -> None:
    production = 'object_type="origin",environment="production"'
    replicas = [half_days(f'{production},instance="{name}"') for name in "ab"]
    backfill(data, [*replicas[0], *replicas[1], *half_days('object_type="origin",environment="staging"', 9)])
    with prometheus(data) as url:
        refresh(store, url, labels={"environment": "production"})
    assert points(store) == {"origin": [(at, float(n + 1)) for n, at in enumerate(HALF_DAYS)]}


def test_a_label_value_cannot_leave_its_quotes(store: HistoryStore, data: Path) -> None:
    odd = 'a"} or vector(1) or {b="\\\n'
    backfill(data, half_days())
    with prometheus(data) as url:
        outcome = refresh(store, url, labels={"environment": odd})
    assert outcome.result is Result.FAILED
    assert "has no point of" in (outcome.problem or "")


def test_more_points_than_prometheus_allows_are_asked_for_in_parts(store: HistoryStore, data: Path) -> None:
    start, minute = LAST - 20 * DAY, 60
    series = 'counters_objects{object_type="content"}'
    backfill(data, [(series, start - 30, 1), (series, start + 15 * DAY - 30, 2)])
    with prometheus(data) as url:
        whole = httpx.get(
            f"{url}/api/v1/query_range",
            params={"query": "counters_objects", "start": start, "end": LAST, "step": minute},
        )
        refresh(store, url, step=minute, live_data_start=start)
    assert (whole.status_code, "11,000 points" in whole.text) == (400, True)
    assert points(store)["content"] == [(start, 1.0), (start + 15 * DAY, 2.0)]


def test_fifteen_days_of_retention_delete_no_history(store: HistoryStore, data: Path) -> None:
    backfill(data, half_days())
    with prometheus(data) as url:
        refresh(store, url)
    before = points(store)
    with prometheus(data, retention="15d") as url:
        known = PrometheusSource(HistorySettings(url=url)).fetch(int(time.time()))["content"]
        assert refresh(store, url).result is Result.REFRESHED
    assert 25 < len(known) < 36
    assert points(store) == before


def test_the_counts_that_prometheus_scrapes_become_the_history(
    store: HistoryStore, data: Path, redis_client: Redis
) -> None:
    publish(redis_client, CounterSpec("content", precision=14), numbered(40))
    settings = Settings(journal=JournalSettings(prefix=TOPICS, group_id=GROUP))
    app = create_app(settings, CountsReader(redis_client, PREFIX, GROUP, TOPICS))
    with running(app) as address, prometheus(data, scrape=address[7:].rstrip("/")) as url:
        start = int(time.time()) - 60
        wait_for(lambda: refresh(store, url, step=1, live_data_start=start).result is Result.REFRESHED)
    assert {value for _, value in points(store)["content"]} == {40.0}
