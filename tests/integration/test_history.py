"""The history follows Prometheus and the files, and outlives whatever goes wrong with them."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from histories import loaded, points
from prometheus_standin import Standin, standing_in
from published import PREFIX
from redis import Redis

from counters.config import HistorySettings
from counters.errors import SettingsError
from counters.history.prometheus import PrometheusSource
from counters.history.refresh import Background, Outcome, Refresher, Result
from counters.history.store import HistoryStore
from journal_client.pytest_plugin import wait_for

STEP = 43_200


@pytest.fixture
def prometheus() -> Iterator[Standin]:
    """Knows ten half-days of two types, up to the last whole one."""
    last = int(time.time()) // STEP * STEP
    times = [last - n * STEP for n in reversed(range(10))]
    points = {name: [(at, str(100 + n)) for n, at in enumerate(times)] for name in ("content", "origin")}
    with standing_in(Standin(points)) as server:
        yield server


@pytest.fixture
def store(redis_client: Redis) -> HistoryStore:
    return HistoryStore(redis_client, PREFIX)


def refresh(store: HistoryStore, url: str, *, allow_shrink: bool = False, **settings: object) -> Outcome:
    given = HistorySettings.model_validate({"url": url, "timeout": 5, **settings})
    return Refresher(store, PrometheusSource(given), given).refresh(allow_shrink=allow_shrink)


def test_the_history_is_what_prometheus_knows(store: HistoryStore, prometheus: Standin) -> None:
    outcome = refresh(store, prometheus.url)
    assert (outcome.result, outcome.counters, outcome.points) == (Result.REFRESHED, 2, 20)
    history = loaded(store)
    assert (history.stale, history.problem) == (False, None)
    assert abs(history.refreshed_at.timestamp() - time.time()) < 60
    assert points(store)["content"] == [(at, float(value)) for at, value in prometheus.points["content"]]


def test_before_the_first_refresh_there_is_no_history(store: HistoryStore) -> None:
    assert (store.load(), store.version()) == (None, None)


def respond(**changes: Any) -> Callable[[Standin], None]:
    def change(server: Standin) -> None:
        for name, value in changes.items():
            setattr(server, name, value)

    return change


def nan(server: Standin) -> None:
    server.points = {"content": [(at, "NaN") for at, _ in server.points["content"]]}


ERROR = b'{"status": "error", "errorType": "bad_data", "error": "exceeded maximum\\n resolution"}'

TROUBLE = {
    "400": (respond(status=400, body=ERROR), "answers 400 Bad Request: exceeded maximum resolution"),
    "401": (respond(status=401, body=b""), "check history.username and history.password"),
    "404": (respond(status=404, body=b"<html>"), "answers 404 Not Found; check history.url"),
    "500": (respond(status=500, body=b"oops"), "answers 500"),
    "503": (respond(status=503, body=ERROR), "answers 503 Service Unavailable: exceeded"),
    "redirect": (
        respond(status=302, headers={"location": "http://127.0.0.1:1/"}, body=b""),
        "set history.url to where it redirects to",
    ),
    "error with 200": (respond(body=ERROR), "reports: exceeded maximum resolution"),
    "warnings": (respond(warnings=["store 10.0.0.1 is down"]), "warns that its answer is incomplete"),
    "nothing": (respond(points={}), "has no point of max by"),
    "nan": (nan, "has no point of max by"),
    "not json": (respond(body=b"<html>"), "does not answer like Prometheus"),
    "other json": (respond(body=b"[]"), "does not answer like Prometheus"),
    "no number": (
        respond(points={"content": [(1_700_006_400, "many")]}),
        "does not answer like Prometheus",
    ),
    "cut off": (respond(headers={"content-length": "100000"}), "ends too early"),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_an_answer_that_is_wrong_keeps_the_history_and_marks_it_stale(
    trouble: str, store: HistoryStore, prometheus: Standin
) -> None:
    assert refresh(store, prometheus.url).result is Result.REFRESHED
    before, good = points(store), loaded(store)
    misbehave, reason = TROUBLE[trouble]
    misbehave(prometheus)
    outcome = refresh(store, prometheus.url)
    assert (outcome.result, points(store)) == (Result.FAILED, before)
    stale = loaded(store)
    assert (stale.stale, stale.problem) == (True, outcome.problem)
    assert reason in (stale.problem or "")
    assert "\n" not in (stale.problem or "")
    assert (stale.refreshed_at, stale.version != good.version) == (good.refreshed_at, True)


def test_a_prometheus_that_is_down_keeps_the_history(store: HistoryStore, prometheus: Standin) -> None:
    refresh(store, prometheus.url)
    before = points(store)
    outcome = refresh(store, "http://127.0.0.1:1")
    assert outcome.problem == "Prometheus does not answer: Connection refused; check history.url"
    assert points(store) == before


def test_an_answer_that_drips_is_given_up_at_the_deadline(store: HistoryStore) -> None:
    released = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not released.wait(0.02):
                self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        outcome = refresh(store, f"http://127.0.0.1:{server.server_port}", timeout=0.2)
        released.set()
        server.shutdown()
    assert "did not answer within 0.2 s; raise history.timeout" in (outcome.problem or "")
    assert time.monotonic() - began < 5


def test_a_prometheus_that_hangs_is_given_up_at_the_deadline(
    store: HistoryStore, prometheus: Standin
) -> None:
    released = threading.Event()
    prometheus.pause = released.wait
    try:
        outcome = refresh(store, prometheus.url, timeout=0.2)
    finally:
        released.set()
    assert "did not answer within 0.2 s" in (outcome.problem or "")


def test_one_window_that_fails_discards_the_others(store: HistoryStore, prometheus: Standin) -> None:
    def fail_later() -> None:
        if len(prometheus.asked) > 1:
            prometheus.status, prometheus.body = 500, b"{}"

    prometheus.pause = fail_later
    outcome = refresh(store, prometheus.url, step=3600, live_data_start=0)
    assert (outcome.result, len(prometheus.asked), store.load()) == (Result.FAILED, 2, None)


def test_a_stale_history_is_fresh_again_after_the_next_refresh(
    store: HistoryStore, prometheus: Standin
) -> None:
    refresh(store, prometheus.url)
    refresh(store, "http://127.0.0.1:1")
    assert loaded(store).stale
    refresh(store, prometheus.url)
    assert (loaded(store).stale, loaded(store).problem) == (False, None)


def test_what_prometheus_has_forgotten_stays(store: HistoryStore, prometheus: Standin) -> None:
    refresh(store, prometheus.url)
    before = points(store)
    prometheus.points = {"content": prometheus.points["content"][-2:]}
    assert refresh(store, prometheus.url).result is Result.REFRESHED
    assert points(store) == before


def test_it_shrinks_only_when_told(store: HistoryStore, prometheus: Standin) -> None:
    refresh(store, prometheus.url)
    prometheus.points = {"content": prometheus.points["content"][-2:]}
    refresh(store, prometheus.url, allow_shrink=True)
    assert {name: len(found) for name, found in points(store).items()} == {"content": 2}


def test_a_bad_sample_costs_only_itself(store: HistoryStore, prometheus: Standin) -> None:
    content = prometheus.points["content"]
    content[1:4] = [(content[1][0], "NaN"), (content[2][0], "+Inf"), (content[3][0], "-1")]
    refresh(store, prometheus.url)
    assert len(points(store)["content"]) == 7
    assert len(points(store)["origin"]) == 10


def test_an_absurd_point_costs_only_itself_and_needs_no_one_to_help(
    store: HistoryStore, prometheus: Standin
) -> None:
    good = prometheus.points["content"]
    prometheus.points["content"] = [*good, (9 * 10**12, "5"), (good[-1][0] + 1, "1e300")]
    assert refresh(store, prometheus.url).result is Result.REFRESHED
    assert points(store)["content"] == [(at, float(value)) for at, value in good]


def test_a_static_file_comes_first_and_live_points_win(
    store: HistoryStore, prometheus: Standin, tmp_path: Path
) -> None:
    first_live = prometheus.points["content"][0][0]
    static = tmp_path / "static_history.json"
    static.write_text(json.dumps({"content": [[first_live * 1000, 1.0], [1_500_000_000_000, 2.0]]}))
    refresh(store, prometheus.url, static_files=[static])
    assert points(store)["content"][:2] == [(1_500_000_000, 2.0), (first_live, 100.0)]


def test_a_missing_static_file_keeps_the_history(
    store: HistoryStore, prometheus: Standin, tmp_path: Path
) -> None:
    refresh(store, prometheus.url)
    outcome = refresh(store, prometheus.url, static_files=[tmp_path / "none.json"])
    assert outcome.result is Result.FAILED
    assert "none.json: No such file or directory; check history.static_files" in (outcome.problem or "")
    assert len(points(store)["content"]) == 10


def test_the_history_is_exported_in_the_shape_of_swh_counters(
    store: HistoryStore, prometheus: Standin, tmp_path: Path
) -> None:
    refresh(store, prometheus.url, export_file=tmp_path / "history.json")
    exported = json.loads((tmp_path / "history.json").read_text())
    at, value = prometheus.points["content"][0]
    assert exported["content"][0] == [at * 1000, float(value)]


def test_an_export_that_fails_is_reported_and_the_history_published(
    store: HistoryStore, prometheus: Standin, tmp_path: Path
) -> None:
    outcome = refresh(store, prometheus.url, export_file=tmp_path / "none" / "history.json")
    assert outcome.result is Result.REFRESHED
    assert "No such file or directory; check history.export_file" in (outcome.problem or "")
    assert not loaded(store).stale


def test_points_are_asked_for_at_multiples_of_the_step(store: HistoryStore, prometheus: Standin) -> None:
    refresh(store, prometheus.url + "/prefix/", live_data_start="2021-04-14T15:47:07Z")
    [asked] = prometheus.asked
    assert asked["path"] == "/prefix/api/v1/query_range"
    assert (int(asked["start"]) % STEP, int(asked["end"]) % STEP, asked["step"]) == (0, 0, str(STEP))
    assert 0 <= int(asked["start"]) - 1_618_415_227 < STEP


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({}, ""),
        ({"bearer_token": "invented"}, "Bearer invented"),
        (
            {"username": "ann", "password": "pässword"},
            "Basic " + base64.b64encode("ann:pässword".encode()).decode(),
        ),
    ],
)
def test_prometheus_is_told_who_asks(
    settings: dict[str, str], header: str, store: HistoryStore, prometheus: Standin
) -> None:
    refresh(store, prometheus.url, **settings)
    assert prometheus.asked[0]["authorization"] == header


def test_a_certificate_is_checked(store: HistoryStore, prometheus: Standin, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    request += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with standing_in(Standin(prometheus.points), context) as server:
        refused = refresh(store, server.url)
        assert (refused.result, "check history.ca_file" in (refused.problem or "")) == (Result.FAILED, True)
        assert refresh(store, server.url, ca_file=certificate).result is Result.REFRESHED
        assert refresh(store, server.url, verify=False).result is Result.REFRESHED


def test_a_ca_file_without_certificate_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(SettingsError, match=r"history\.ca_file .*empty\.pem cannot be used"):
        PrometheusSource(HistorySettings(url="https://h", ca_file=tmp_path / "empty.pem"))


def test_a_failure_is_logged_once_and_the_recovery_too(
    store: HistoryStore, prometheus: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prometheus.status, prometheus.body = 503, b""
    settings = HistorySettings(url=prometheus.url, refresh_every=0.02)
    with Background(Refresher(store, PrometheusSource(settings), settings)):
        wait_for(lambda: len(prometheus.asked) >= 3)
        prometheus.status, prometheus.body = 200, None
        wait_for(lambda: "can be refreshed again" in caplog.text)
    assert caplog.text.count("answers 503") == 1
