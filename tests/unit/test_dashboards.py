"""Dashboards and alerts ask for what the code declares, in words that Prometheus and Grafana understand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from declared import declared_metrics
from promql import filled_in, names
from promtool import promtool

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "counters"
DASHBOARDS = {path: json.loads(path.read_text(encoding="utf-8")) for path in CHART.glob("dashboards/*.json")}
RULES = {
    path: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in CHART.glob("alerts/*.yaml")
    if not path.stem.endswith("_test")
}
ALERTS = [rule for rules in RULES.values() for group in rules["groups"] for rule in group["rules"]]
QUERY = re.compile(r"label_values\((?:(?P<expr>.+), )?(?P<label>\w+)\)")


class Expression(NamedTuple):
    """One expression, where it stands, and the labels that the text beside it shows."""

    where: str
    text: str
    shown: frozenset[str]


def _labels_shown(*texts: str) -> frozenset[str]:
    found = (re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text) for text in texts)
    return frozenset(label for labels in found for label in labels)


def _expressions() -> Iterator[Expression]:
    for path, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                where = f"{path.stem}: {panel['title']} {target['refId']}"
                yield Expression(where, target["expr"], _labels_shown(target["legendFormat"]))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = QUERY.fullmatch(variable["query"]["query"])
                assert found, variable
                yield Expression(
                    f"{path.stem}: ${variable['name']}", found["expr"], frozenset({found["label"]})
                )
    for rule in ALERTS:
        shown = _labels_shown(rule["annotations"]["summary"], rule["annotations"]["description"])
        yield Expression(rule["alert"], rule["expr"], shown)


EXPRESSIONS = list(_expressions())
by_place = pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.where)
by_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=lambda one: one["uid"])
by_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


@by_place
def test_every_metric_asked_for_is_declared(expression: Expression) -> None:
    metrics, _ = names(expression.text)
    assert metrics
    assert not metrics - declared_metrics().keys()


@by_place
def test_every_label_asked_for_or_shown_is_declared(expression: Expression) -> None:
    metrics, labels = names(expression.text)
    known = frozenset[str]().union(*(declared_metrics()[metric] for metric in metrics))
    assert not labels - known
    assert not expression.shown - known


def test_every_expression_is_understood_by_prometheus(tmp_path: Path) -> None:
    rules = [
        {"record": f"expression:{number}", "expr": filled_in(expression.text)}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    checked = promtool("check", "rules", "--lint=none", str(path))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(EXPRESSIONS)} rules found" in checked.stdout


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_the_alerts_are_accepted(path: Path) -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_the_alerts_fire_and_are_silent_as_their_tests_say(path: Path) -> None:
    checked = promtool("test", "rules", str(path.with_stem(f"{path.stem}_test")))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _cases() -> dict[str, list[dict[str, Any]]]:
    cases: dict[str, list[dict[str, Any]]] = {rule["alert"]: [] for rule in ALERTS}
    for path in RULES:
        tests = yaml.safe_load(path.with_stem(f"{path.stem}_test").read_text(encoding="utf-8"))["tests"]
        for test in tests:
            cases[test["name"].split()[0]].append(test)
    return cases


@by_alert
def test_every_alert_is_tested_firing_silent_and_without_its_series(rule: dict[str, Any]) -> None:
    tests = _cases()[rule["alert"]]
    assert {any(check["exp_samples"] for check in test["promql_expr_test"]) for test in tests} == {
        True,
        False,
    }
    assert [test for test in tests if not test["input_series"]]
    for test in tests:
        assert all(rule["alert"] in check["expr"] for check in test["promql_expr_test"])


@by_alert
def test_every_alert_says_what_to_do_and_where_it_is_described(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    assert anchor == rule["alert"].lower()
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 80
    assert rule["labels"]["severity"] in ("critical", "warning")


@by_dashboard
def test_a_dashboard_can_be_provisioned_as_it_is(dashboard: dict[str, Any]) -> None:
    assert "__inputs" not in dashboard
    assert dashboard["id"] is None
    assert re.fullmatch(r"counters-[a-z]+", dashboard["uid"])


@by_dashboard
def test_the_data_source_is_a_variable_everywhere(dashboard: dict[str, Any]) -> None:
    [variable] = [one for one in dashboard["templating"]["list"] if one["type"] == "datasource"]
    assert (variable["name"], variable["query"]) == ("datasource", "prometheus")
    queries = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    users = [*dashboard["panels"], *queries, *(t for panel in dashboard["panels"] for t in panel["targets"])]
    assert {user["datasource"]["uid"] for user in users} == {"${datasource}"}


@by_dashboard
def test_only_variables_that_exist_are_used(dashboard: dict[str, Any]) -> None:
    known = {one["name"] for one in dashboard["templating"]["list"]} | {"__rate_interval", "__range"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= known


@by_dashboard
def test_panels_say_what_they_show_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["description"].endswith(".")
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@by_dashboard
def test_figures_that_every_replica_exports_are_never_added_up(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert not re.search(r"sum( by \(\w+\))? \(\w*\(?counters_objects", target["expr"])


def test_identifiers_of_dashboards_are_their_own() -> None:
    uids = [dashboard["uid"] for dashboard in DASHBOARDS.values()]
    assert len(set(uids)) == len(uids) == 3


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("up", {"up"}, set()),
        (
            'sum by (a, b) (rate(x_total{c=~"d|e", f!="g"}[$__rate_interval]))',
            {"x_total"},
            {"a", "b", "c", "f"},
        ),
        ("x unless x offset 1h > 1e6 or absent(y)", {"x", "y"}, set()),
        ("x and on (job) y{}", {"x", "y"}, {"job"}),
        ("histogram_quantile(0.5, sum by (le) (z_bucket))", {"z_bucket"}, {"le"}),
        ("time() - max(x) or vector(0)", {"x"}, set()),
    ],
)
def test_names_are_found_in_expressions(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert names(expression) == (metrics, labels)


COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def _content(name: str) -> Any:
    return yaml.safe_load(COMPOSE["configs"][name]["content"])


def _mounts(service: str) -> dict[str, Path]:
    """Where the folders of this repository are inside the container of ``service``."""
    volumes = [volume.split(":") for volume in COMPOSE["services"][service]["volumes"]]
    return {target: ROOT / source for source, target, *_ in volumes if source.startswith(".")}


def test_compose_gives_prometheus_every_alert_and_no_test(tmp_path: Path) -> None:
    config = _content("prometheus")
    [(inside, outside)] = _mounts("prometheus").items()
    files = [Path(file.replace(inside, str(outside))) for file in config["rule_files"]]
    assert sorted(files) == sorted(RULES)
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump({**config, "rule_files": [str(file) for file in files]}))
    checked = promtool("check", "config", str(path))
    assert checked.returncode == 0, checked.stderr


def test_compose_scrapes_every_process_that_has_metrics() -> None:
    jobs = {job["job_name"] for job in _content("prometheus")["scrape_configs"]}
    assert jobs == {"counters-serve", "counters-exporter", "counters-worker"}


def test_compose_gives_grafana_the_dashboards_and_a_source() -> None:
    [provider] = _content("grafana-dashboards")["providers"]
    mounts = _mounts("grafana")
    assert {path.parent for path in DASHBOARDS} == {mounts[provider["options"]["path"]]}
    [source] = _content("grafana-datasources")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    home = Path(COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert mounts[str(home.parent)] / home.name in DASHBOARDS
