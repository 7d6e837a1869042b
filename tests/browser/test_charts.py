"""What the charts draw, and how they and the ages beside them keep up with the time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import Page, until
from front_page import CONTENT, PLOT, READING, charted, readable
from published import numbered, publish
from real_prometheus import prometheus, require_prometheus
from redis import Redis
from serving import listening, publish_history, served

from counters.api.stream import Feed
from counters.embedded import EmbeddedRedis
from counters.objects.spec import CounterSpec

LATE = 3
"""Seconds after the last change at which somebody comes; more than a busy machine needs to show a page."""

AGE = "parseInt(document.querySelector('.card [data-field=\"updated\"]').textContent)"
AS_OF = """Date.parse(`${new Date().toDateString()} ${
    document.getElementById('as-of').textContent.split(',')[0].replace('\\u202f', ' ')}`) / 1000"""
END = "charts.at(-1).scales.x.max"

KEEP_CHARTS = """
    window.charts = [];
    let made;
    Object.defineProperty(window, 'uPlot', {
        get: () => made,
        set: (uPlot) => { made = class extends uPlot {
            constructor(...all) { super(...all); window.charts.push(this); }
        }; },
    });
"""

KEEP_LABELS = """
    window.labels = new Map();
    const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...all) {
        window.labels.set(this.canvas, []);
        clearRect.apply(this, all);
    };
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
        window.labels.get(this.canvas)?.push([text, x, y, this.measureText(text).width]);
        fillText.call(this, text, x, y, ...more);
    };
"""

COLUMN = """(() => {
    const canvas = document.querySelector('canvas'), middle = Math.round(canvas.width / 2);
    const pixels = canvas.getContext('2d').getImageData(middle, 0, 1, canvas.height).data;
    return Array.from({ length: canvas.height }, (_, row) => [pixels[4 * row], pixels[4 * row + 3]]);
})()"""
"""How red and how opaque the pixels of a column are that goes through the middle of the chart."""


def told(client: httpx.Client) -> dict[str, Any]:
    counts: dict[str, Any] = client.get("/api/v1/counts").json()
    return counts


def publish_now(redis: Redis, *others: CounterSpec) -> int:
    """Publish counters that change now, with a history of two minutes; the time, in Unix seconds."""
    now = int(time.time())
    points = [(now - age, 19_900.0) for age in range(120, 0, -20)]
    for spec in (CONTENT, *others):
        publish(redis, spec, numbered(20_000), messages=20_000, stamp=now * 1000)
    publish_history(redis, **{spec.name: points for spec in (CONTENT, *others)})
    return now


def test_who_comes_late_sees_the_present(redis_client: Redis, redis_url: str, page: Page) -> None:
    changed = publish_now(redis_client)
    page.begin_with(KEEP_CHARTS)
    with served(redis_url) as client:
        until(lambda: time.time() > changed + LATE and told(client), "time stands still")
        page.open(str(client.base_url))
        readable(page)
        charted(page)
        assert page.evaluate(AS_OF) >= changed + LATE - 1  # written without its fraction
        assert page.evaluate(AGE) >= LATE - 1
        assert page.evaluate(END) >= changed + LATE


def test_who_comes_late_to_a_store_that_is_down_sees_for_how_long(
    own_redis: Callable[..., EmbeddedRedis], page: Page
) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        changed = publish_now(redis)
    page.begin_with(KEEP_CHARTS)
    with served(server.url) as client:
        until(lambda: client.get("/api/v1/history").json()["series"], "no history")
        server.kill()
        until(lambda: told(client)["age_seconds"] >= LATE, "the counts do not age")
        page.open(str(client.base_url))
        readable(page, "stale")
        assert int(page.text("#as-of").partition(", ")[2].partition("s")[0]) >= LATE
        assert page.evaluate(AGE) >= LATE
        charted(page)
        assert page.evaluate(END) >= changed + LATE


def test_without_a_change_ages_and_charts_go_on(
    redis_client: Redis, redis_url: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.api.app.Feed", partial(Feed, heartbeat=0.2))
    publish_now(redis_client)
    page.begin_with(KEEP_CHARTS)
    with served(redis_url) as client:
        page.open(str(client.base_url))
        readable(page)
        charted(page)
        age, end = page.evaluate(AGE), page.evaluate(END)
        page.wait_for(f"{AGE} >= {age + 1}")
        page.wait_for(f"{END} >= {end + 1}")
        page.wait_for("document.querySelector('[data-field=\"rate\"]').textContent === '0'")


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_the_first_minutes_do_not_run_into_each_other(
    redis_client: Redis, redis_url: str, page: Page, width: int
) -> None:
    publish_now(redis_client, CounterSpec("origin", precision=14))
    page.begin_with(KEEP_LABELS)
    page.resize(width)
    with served(redis_url) as client:
        page.open(str(client.base_url))
        readable(page)
        charted(page)
        drawn = page.evaluate("[...window.labels.values()]")
    for labels in drawn:
        times = [(x, length) for text, x, _, length in labels if ":" in text]
        assert times
        for (x, length), (next_x, next_length) in pairwise(times):
            assert next_x - x >= (length + next_length) / 2 + 8


def test_the_error_is_drawn_above_and_below_the_line(redis_client: Redis, redis_url: str, page: Page) -> None:
    publish_now(redis_client)
    page.prefer(color_scheme="light")
    with served(redis_url) as client:
        page.open(str(client.base_url))
        readable(page)
        charted(page)
        column = page.evaluate(COLUMN)
    # colours of the style sheet: the line is #8c2f1f, the band the same with an opacity of 0x2e
    line = next(row for row, (red, opacity) in enumerate(column) if opacity > 200 and abs(red - 0x8C) < 20)
    above, below = column[:line], column[line + 1 :]
    assert [opacity for _, opacity in above].count(0x2E) > 10
    assert [opacity for _, opacity in below].count(0x2E) > 10
    assert column[0][1] == column[-1][1] == 0


@pytest.mark.xdist_group("prometheus")
def test_what_prometheus_scraped_from_the_exporter_is_seen_as_the_past(
    redis_client: Redis, redis_url: str, page: Page, tmp_path: Path
) -> None:
    require_prometheus()
    publish(redis_client, CONTENT, numbered(40))
    store = {"COUNTERS_REDIS__URL": redis_url}
    with (
        listening("exporter", "--port", "0", **store) as (_, exported),
        prometheus(tmp_path / "data", scrape=httpx.URL(exported).netloc.decode()) as url,
    ):
        history = {"URL": url, "STEP": "1", "LIVE_DATA_START": str(int(time.time()) - 60)}
        variables = {**os.environ, **store, **{f"COUNTERS_HISTORY__{k}": v for k, v in history.items()}}
        command = [sys.executable, "-m", "counters", "history", "refresh"]
        until(lambda: subprocess.run(command, env=variables, check=False).returncode == 0, "no history")
    publish(redis_client, CONTENT, numbered(100))
    with served(redis_url) as client:
        page.open(str(client.base_url))
        charted(page)
        page.wait_for(f"document.querySelector('{READING}').textContent.startsWith('+60 since ')")
        page.evaluate(f"document.querySelector('{PLOT}').focus()")
        page.press("Home")
        page.wait_for(f"document.querySelector('{READING}').textContent.endsWith(': 40')")
