"""The history under the names that clients of swh-counters ask for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from old_calls import JSON, call, error_of, post, publish_history, serving
from published import numbered, publish
from redis import Redis

from counters.api import legacy_calls
from counters.config import ApiSettings, LegacyApiSettings
from counters.embedded import EmbeddedRedis
from counters.history.refresh import RefreshBusy
from counters.history.series import Series
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CounterSpec("content", precision=16), numbered(100))
    publish(redis_client, CounterSpec("origin", precision=14), numbered(10))
    with serving(redis_url) as client:
        yield client


# -- the history


@pytest.fixture
def with_history(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish_history(redis_client)
    with serving(redis_url) as client:
        yield client


def file_of(client: httpx.Client) -> object:
    answer = client.get("/counters_history/history.json")
    return answer.json() if answer.status_code == 200 else None


def test_the_history_file_has_the_old_shape(with_history: httpx.Client) -> None:
    answer = with_history.get("/counters_history/history.json")
    assert answer.headers["content-type"] == JSON
    assert answer.text == (
        '{"content":[[1600000000000,10.0],[1600043200000,11.5]],"origin":[[1600000000000,5.0]]}\n'
    )


def test_the_history_call_gives_the_same_content(with_history: httpx.Client) -> None:
    content = with_history.get("/counters_history/history.json").json()
    assert with_history.post("/history", json={"cache_file": "history.json"}).json() == content
    assert call(with_history, "/history", cache_file="history.json") == content


def test_all_series_are_in_the_history_if_none_is_named(redis_client: Redis, redis_url: str) -> None:
    publish_history(redis_client)
    with serving(redis_url, ApiSettings(legacy=LegacyApiSettings(history_types=[]))) as client:
        assert list(client.get("/counters_history/history.json").json()) == ["content", "origin", "person"]


def test_a_new_history_is_visible_on_every_server(redis_client: Redis, redis_url: str) -> None:
    with serving(redis_url) as one, serving(redis_url) as other:
        for value in (1.0, 2.0):
            publish_history(redis_client, {"content": Series.of([(1_600_000_000, value)])})
            expected = {"content": [[1_600_000_000_000, value]]}
            wait_for(lambda: file_of(one) == file_of(other) == expected)  # noqa: B023 - waited for here


def test_the_history_is_served_on_while_redis_is_down(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        publish_history(redis)
    with serving(server.url) as client:
        before = client.get("/counters_history/history.json")
        server.kill()
        wait_for(lambda: call(client, "/check") is False)
        after = client.get("/counters_history/history.json")
    assert (after.status_code, after.content) == (200, before.content)


def test_without_a_history_the_file_is_404(client: httpx.Client) -> None:
    assert error_of(client.get("/counters_history/history.json")) == (404, "FileNotFoundError")
    assert error_of(post(client, "/history", cache_file="history.json")) == (404, "FileNotFoundError")


PATHS = [
    "other.json",
    "",
    "HISTORY.JSON",
    "history.json/",
    "history.json%00",
    "./history.json",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "..%5c..%5cetc%5cpasswd",
    "%2fetc%2fpasswd",
    "history.json%0d%0aSet-Cookie:%20a=b",
    "%c0%ae%c0%ae/etc/passwd",
    "%ff",
]


def raw_get(client: httpx.Client, target: str) -> tuple[bytes, bytes]:
    """Head and body of the answer to a path that no client library may tidy up."""
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), 5) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def test_a_file_name_never_reaches_a_path(with_history: httpx.Client) -> None:
    for name in PATHS:
        head, body = raw_get(with_history, f"/counters_history/{name}")
        assert head.startswith(b"HTTP/1.1 404"), name
        assert b"set-cookie" not in head.lower()
        assert b"root:" not in body


def test_the_argument_names_a_known_history_or_nothing(redis_client: Redis, redis_url: str) -> None:
    publish_history(redis_client)
    with serving(redis_url, refresh=lambda: None) as client:
        for path in ("/history", "/refresh_history"):
            for name in ("../../etc/passwd", "/etc/passwd", "other.json", b"history.json", None, []):
                assert error_of(post(client, path, cache_file=name)) == (404, "FileNotFoundError"), name


def test_a_refresh_is_waited_for_and_takes_the_arguments_of_old_scripts(
    redis_client: Redis, redis_url: str
) -> None:
    request = {
        "cache_file": "history.json",
        "objects": ["content", "origin", "revision"],
        "static_file": "static_history.json",
    }

    def refresh() -> None:
        publish_history(redis_client)

    with serving(redis_url, refresh=refresh) as client:
        answer = client.post("/refresh_history", json=request)
        assert (answer.status_code, answer.text) == (200, "null")
        assert client.get("/counters_history/history.json").json()["origin"] == [[1_600_000_000_000, 5.0]]


def test_a_refresh_that_failed_is_no_200_and_keeps_the_history(redis_client: Redis, redis_url: str) -> None:
    publish_history(redis_client)
    with serving(redis_url, refresh=lambda: "Prometheus answered 500") as client:
        before = client.get("/counters_history/history.json").content
        answer = post(client, "/refresh_history", cache_file="history.json")
        assert error_of(answer) == (503, "RuntimeError")
        assert b"Prometheus answered 500" in answer.content
        assert client.get("/counters_history/history.json").content == before


def test_a_defect_is_a_500_without_its_story(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def refresh() -> None:
        raise ZeroDivisionError("secret")

    with serving(redis_url, refresh=refresh) as client:
        answer = post(client, "/refresh_history", cache_file="history.json")
        assert error_of(answer) == (500, "RuntimeError")
        assert b"secret" not in answer.content
    assert "ZeroDivisionError" in caplog.text


def test_a_refresh_waits_until_another_one_is_done(redis_client: Redis, redis_url: str) -> None:
    attempts: list[bool] = []

    def refresh() -> None:
        attempts.append(True)
        if len(attempts) < 3:
            raise RefreshBusy("another refresh is running")
        publish_history(redis_client)

    with serving(redis_url, refresh=refresh) as client:
        assert call(client, "/refresh_history", cache_file="history.json") is None
        assert file_of(client) is not None
    assert len(attempts) == 3


def test_a_refresh_that_gets_no_turn_is_to_be_tried_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legacy_calls, "TURN_SECONDS", 0.2)

    def busy() -> None:
        raise RefreshBusy("another refresh is running")

    with serving(redis_url, refresh=busy) as client:
        answer = post(client, "/refresh_history", cache_file="history.json")
    assert error_of(answer) == (503, "ConnectionError")
