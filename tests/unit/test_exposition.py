"""The text of the metrics: formats, the family of swh-counters, and what is left out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from promtool import promtool

from counters.checkpoints.model import Checkpoint, Desired
from counters.durability import Durability, judge
from counters.exporter import Exposition, Reading, expose, negotiate, render_legacy_family
from counters.metrics import PUBLISHED
from counters.objects.spec import Count

NOW = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
HOSTILE = 'a"b\\c\nd} 9'

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def count(name: str, value: int | None, *, suspect: bool = False, messages: int | None = None) -> Count:
    return Count(name, value, 0.002, NOW, NOW, suspect, messages)


def text_of(reading: Reading, accept: str = "", *, legacy: bool = False) -> str:
    return bytes(expose(reading, accept, legacy=legacy).body).decode()


def samples(reading: Reading) -> dict[tuple[str, str], float]:
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in parse_text(text_of(reading))
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Exposition.TEXT_0),
        ("*/*", Exposition.TEXT_0),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Exposition.TEXT_0),
        ("text/html", Exposition.TEXT_0),
        ("text/plain", Exposition.TEXT_0),
        ("text/plain;version=0.0.4;q=0.3", Exposition.TEXT_0),
        ("text/plain; version=1.0.0", Exposition.TEXT_1),
        ("text/plain;version=abc", Exposition.TEXT_0),
        ("text/plain;version=1.0.0;q=zero", Exposition.TEXT_0),
        (OPENMETRICS, Exposition.OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", Exposition.OPENMETRICS),
        ("application/openmetrics-text", Exposition.OPENMETRICS),
        (f"{OPENMETRICS};q=0,text/plain;version=1.0.0", Exposition.TEXT_1),
        (f"{OPENMETRICS};q=0.5,text/plain;version=0.0.4;q=0.9", Exposition.TEXT_0),
        ("application/openmetrics-text;version=99.0", Exposition.TEXT_0),
        (PROMETHEUS_2, Exposition.OPENMETRICS),
        (PROMETHEUS_3, Exposition.OPENMETRICS),
        (";;,=;q", Exposition.TEXT_0),
    ],
)
def test_the_format_is_the_one_that_is_liked_best(accept: str, form: Exposition) -> None:
    assert negotiate(accept) is form
    response = expose(Reading(), accept)
    assert response.headers["content-type"] == form.value


def test_the_legacy_family_is_written_as_swh_counters_writes_it() -> None:
    counts = [count("content", 27_480_000_000), count("origin", 3)]
    assert render_legacy_family(counts) == (
        b"# HELP swh_archive_object_total Software Heritage Archive object counters\n"
        b"# TYPE swh_archive_object_total gauge\n"
        b'swh_archive_object_total{col="value", object_type="content"} 27480000000\n'
        b'swh_archive_object_total{col="value", object_type="origin"} 3\n'
    )


def test_the_legacy_family_leaves_out_what_is_not_known() -> None:
    counts = [count("content", 3), count("release", None), count("revision", 1, suspect=True)]
    lines = render_legacy_family(counts).splitlines()
    assert lines[2:] == [b'swh_archive_object_total{col="value", object_type="content"} 3']


def test_label_values_are_escaped_in_the_legacy_family() -> None:
    [family] = parse_text(render_legacy_family([count(HOSTILE, 3)]).decode())
    [sample] = family.samples
    assert (sample.labels["object_type"], sample.value) == (HOSTILE, 3)


def test_label_values_are_escaped() -> None:
    assert samples(Reading([count(HOSTILE, 3)], age=0.0))["counters_objects", HOSTILE] == 3


def test_the_legacy_family_is_there_only_if_asked_for() -> None:
    reading = Reading([count("content", 3)], age=0.0)
    assert "swh_archive" not in text_of(reading)
    assert 'object_total{col="value", object_type="content"} 3\n' in text_of(reading, legacy=True)


def test_openmetrics_stays_valid_with_the_legacy_family() -> None:
    text = text_of(Reading([count("content", 3)], age=0.0), OPENMETRICS, legacy=True)
    assert text.count("# EOF\n") == 1
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["swh_archive_object_total"].samples[0].value == 3


def test_without_counts_there_are_no_values_but_the_reason_for_alerts() -> None:
    found = samples(Reading(age=60.0, errors=4, problem="Redis does not answer"))
    assert found == {
        ("counters_store_unavailable", ""): 1,
        ("counters_read_errors_total", ""): 4,
        ("counters_read_age_seconds", ""): 60,
    }


def test_what_could_not_be_read_costs_only_itself() -> None:
    found = samples(Reading([count("content", 3), count("release", None)], age=0.0))
    assert ("counters_objects", "release") not in found
    assert found["counters_objects_unreadable", "release"] == 1
    assert (found["counters_objects", "content"], found["counters_store_unavailable", ""]) == (3, 0)


@pytest.mark.parametrize(
    ("durability", "persistence"),
    [
        (Durability(aof=True, rdb=False), {"aof": 1, "rdb": 0}),
        (Durability(aof=True, rdb=None), {"aof": 1}),
        (Durability(aof=False, rdb=True), {"aof": 0, "rdb": 1}),
        (Durability(aof=False, rdb=False), {"aof": 0, "rdb": 0}),
        (Durability(aof=False, rdb=None), {}),
        (Durability(), {}),
    ],
)
def test_persistence_is_reported_where_it_is_known(
    durability: Durability, persistence: dict[str, float]
) -> None:
    found = samples(Reading(durability=durability))
    name = "counters_redis_persistence"
    assert {mode: value for (metric, mode), value in found.items() if metric == name} == persistence


@pytest.mark.parametrize(
    ("info", "save", "aof", "rdb"),
    [
        ({"aof_enabled": 1}, "", True, False),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "", False, False),
        ({"aof_enabled": 0}, "3600 1", False, True),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "3600 1", False, False),
        ({"aof_enabled": 0}, None, False, None),
    ],
)
def test_persistence_that_does_not_work_is_none(
    info: dict[str, object], save: str | None, aof: bool, rdb: bool | None
) -> None:
    verdict = judge(info, save, "noeviction")
    assert (verdict.aof, verdict.rdb) == (aof, rdb)


@pytest.mark.parametrize(
    ("policy", "evicting"),
    [
        ("noeviction", False),
        ("volatile-lru", False),
        ("allkeys-lru", True),
        ("allkeys-random", True),
        (None, None),
    ],
)
def test_counters_are_evicted_where_every_key_may_be(policy: str | None, evicting: bool | None) -> None:
    assert judge({}, None, policy).evicting is evicting


BACKFILL = Checkpoint(
    "backfill:content",
    {},
    {},
    Desired.PAUSED,
    "running",
    updated_at=NOW,
    heartbeat_at=NOW,
    items={"ok": 7, "failed": 2},
)


def test_a_task_is_published_with_pause_last_progress_and_items() -> None:
    found = samples(Reading(age=0.0, tasks=[BACKFILL]))
    assert found["task_paused", "backfill:content"] == 1
    assert found["task_last_progress_timestamp_seconds", "backfill:content"] == NOW.timestamp()
    assert found["batch_items_total", "okbackfill:content"] == 7
    assert found["batch_items_total", "failedbackfill:content"] == 2


def test_a_task_that_never_ran_has_no_last_progress() -> None:
    found = samples(Reading(age=0.0, tasks=[Checkpoint("a:1", {}, {}, Desired.RUN, "idle", NOW)]))
    assert found["task_paused", "a:1"] == 0
    assert ("task_last_progress_timestamp_seconds", "a:1") not in found


def test_the_metrics_are_named_as_prometheus_wants_them() -> None:
    reading = Reading(
        [count("content", 3, messages=4)],
        age=0.0,
        durability=Durability(True, True, False),
        tasks=[BACKFILL],
    )
    checked = promtool("check", "metrics", text=text_of(reading))
    assert (checked.returncode, checked.stderr) == (0, "")


def test_no_metric_is_declared_twice() -> None:
    names = [metric.name for metric in PUBLISHED]
    assert len(set(names)) == len(names)
