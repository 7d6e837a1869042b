"""``counters history`` as an operator uses it, and what ``counters serve`` does by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from histories import points
from prometheus_standin import Standin, standing_in
from published import PREFIX, numbered, publish
from redis import Redis

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning
from counters.cli import run
from counters.cli.history import certain
from counters.history.store import HistoryStore
from counters.objects.spec import Count, CounterSpec
from journal_client.pytest_plugin import wait_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Counters = Callable[..., Done]


@pytest.fixture
def counters(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Counters:
    """``counters("history", "show", NAME="value")`` runs the command with these variables set."""
    monkeypatch.setenv("COUNTERS_REDIS__URL", redis_url)

    def call(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = run(arguments)
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def sampled(redis_client: Redis) -> None:
    """Two samples of two counters, long ago."""
    redis_client.sadd("{counters}:sampled", "content", "origin")
    for name in ("content", "origin"):
        samples = {"1700000000:5": 1_700_000_000, "1700100000:1234567": 1_700_100_000}
        redis_client.zadd(f"{{counters}}:series:{name}", samples)


@pytest.mark.usefixtures("sampled")
def test_refresh_show_and_export_tell_the_same_story(counters: Counters, tmp_path: Path) -> None:
    refreshed = counters("history", "refresh")
    assert refreshed.out.startswith("2 counters, 4 points in ")
    shown = counters("history", "show").out.splitlines()
    assert shown[0].endswith("; fresh")
    assert " ".join(shown[1].split()) == (
        "content 2 points 2023-11-14 22:13 UTC to 2023-11-16 02:00 UTC 1,234,567"
    )
    file = tmp_path / "history.json"
    assert counters("history", "export", str(file)).code == 0
    printed = counters("history", "export", "--type", "origin").out
    expected = [[1_700_000_000_000, 5.0], [1_700_100_000_000, 1_234_567.0]]
    assert json.loads(file.read_text()) == {"content": expected, "origin": expected}
    assert json.loads(printed) == {"origin": expected}


@pytest.mark.usefixtures("sampled")
def test_a_refresh_that_fails_is_one_line_and_shown_as_stale(counters: Counters) -> None:
    counters("history", "refresh")
    with standing_in(Standin(status=503, body=b"")) as server:
        failed = counters("history", "refresh", COUNTERS_HISTORY__URL=server.url)
    assert failed.code == 2
    assert failed.err == "counters: Prometheus answers 503 Service Unavailable; check history.url\n"
    shown = counters("history", "show").out
    assert "stale: Prometheus answers 503 Service Unavailable" in shown
    assert "content" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show"], "there is no history yet"),
        (["export"], "there is no history yet"),
        (["refresh"], "neither the source nor history.static_files has a point yet"),
    ],
)
def test_without_a_history_it_is_said_in_one_line(
    arguments: list[str], complaint: str, counters: Counters
) -> None:
    done = counters("history", *arguments)
    assert (done.code, complaint in done.err, done.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"COUNTERS_HISTORY__URL": "prometheus:9090"}, "history.url"),
        (
            {"COUNTERS_HISTORY__URL": "http://ann:secret@h"},
            "set history.username and",
        ),
        ({"COUNTERS_HISTORY__METRIC": "a{b"}, "history.metric"),
        ({"COUNTERS_HISTORY__LABELS": '{"a-b": "c"}'}, "history.labels"),
        ({"COUNTERS_HISTORY__PASSWORD": "secret"}, "password has no username"),
    ],
)
def test_wrong_settings_are_one_line_without_secrets(
    variables: dict[str, str], complaint: str, counters: Counters
) -> None:
    done = counters("history", "show", **variables)
    assert (done.code, done.err.count("\n"), "secret" in done.err) == (2, 1, False)
    assert complaint in done.err


def answers(address: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{address}healthz").status_code == 200
    return False


def test_serve_builds_a_history_by_itself(redis_url: str, redis_client: Redis) -> None:
    publish(redis_client, CounterSpec("content", precision=14), numbered(40))
    variables = {
        "COUNTERS_REDIS__URL": redis_url,
        "COUNTERS_HISTORY__SAMPLE_EVERY": "1",
        "COUNTERS_HISTORY__REFRESH_EVERY": "0.2",
    }
    command = [sys.executable, "-m", "counters", "serve", "--port", "0"]
    with subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].decode()
        try:
            wait_for(lambda: answers(address), message="it does not answer")
            store = HistoryStore(redis_client, PREFIX)
            wait_for(lambda: store.load() is not None, message="no history appears")
            assert points(store)["content"][0][1] == 40.0
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_only_counts_that_can_be_believed_become_history() -> None:
    good = Count("good", 5, 0.01, updated_at=None, as_of=NOW)
    suspect = Count("suspect", 4, 0.01, updated_at=None, as_of=NOW, suspect=True)
    unreadable = Count("unreadable", None, 0.01, updated_at=None, as_of=NOW)
    assert certain([good, suspect, unreadable]) == {"good": 5}


@pytest.mark.usefixtures("sampled")
def test_a_refresh_beside_another_one_does_nothing_and_exits_with_1(
    counters: Counters, redis_client: Redis
) -> None:
    with HistoryStore(redis_client, PREFIX).claim():
        done = counters("history", "refresh")
    assert (done.code, done.out, done.err) == (
        1,
        "",
        "another refresh is running; try again when it is done\n",
    )


@pytest.mark.usefixtures("sampled")
def test_a_paused_history_is_not_refreshed(counters: Counters, redis_client: Redis) -> None:
    store = HistoryStore(redis_client, PREFIX)
    store.checkpoints.pause("history:default")
    done = counters("history", "refresh")
    assert (done.code, done.out) == (1, "")
    assert done.err == "history:default is paused; counters checkpoints resume history:default\n"
    assert store.load() is None


@pytest.mark.usefixtures("sampled")
def test_a_refresh_is_listed_among_the_tasks(counters: Counters, redis_client: Redis) -> None:
    assert counters("history", "refresh").code == 0
    [row] = HistoryStore(redis_client, PREFIX).checkpoints.list()
    assert (row.name, row.state, row.position) == ("history:default", "idle", {})
    assert row.counts["ok"] > 0
    assert row.heartbeat_at is not None


def test_a_refresh_that_is_killed_lets_the_next_one_begin(redis_client: Redis, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {
            "COUNTERS_REDIS__URL": redis_url,
            "COUNTERS_HISTORY__URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        command = [sys.executable, "-m", "counters", "history", "refresh"]
        with subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE) as process:
            try:
                silent.settimeout(20)
                connection, _ = silent.accept()  # it holds the claim and asks
                with connection:
                    assert HistoryStore(redis_client, PREFIX).checkpoints.holder("history:default")
                    process.kill()
                    process.wait(20)
            finally:
                process.kill()
    claimed = wait_for(lambda: _claimed(HistoryStore(redis_client, PREFIX)), timeout=0.1)
    claimed.release()


def _claimed(store: HistoryStore) -> Claim | None:
    try:
        return store.claim()
    except AlreadyRunning:
        return None
