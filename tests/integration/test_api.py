"""What the API answers over a real Redis: while it is up, damaged, down, frozen and back."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from published import PREFIX, TOPICS, numbered, publish
from redis import Redis
from serving import SETTINGS, running, serve, served

from counters.api.app import create_app
from counters.api.latest import ReadsCounts
from counters.api.page import GAP
from counters.embedded import EmbeddedRedis
from counters.objects.spec import Count, CounterSpec
from journal_client.pytest_plugin import wait_for

BROWSER = {"accept": "text/html"}
CONTENT = CounterSpec("content", precision=16)
RELEASE = CounterSpec("release", precision=14)


@contextmanager
def served_by(reader: ReadsCounts, interval: float) -> Iterator[httpx.Client]:
    app = create_app(SETTINGS, reader, interval=interval)
    with running(app) as address, httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CONTENT, numbered(100), messages=150, stamp=1_700_000_000_000)
    publish(redis_client, RELEASE, numbered(10))
    with served(redis_url) as client:
        yield client


def samples(client: httpx.Client) -> dict[tuple[str, str], float]:
    text = client.get("/metrics").text
    return {
        (sample.name, sample.labels.get("object_type", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_count_says_how_exact_and_how_old_it_is(client: httpx.Client) -> None:
    body = client.get("/api/v1/counts").json()
    assert (body["stale"], body["age_seconds"], list(body["counts"])) == (False, 0, ["content", "release"])
    content = body["counts"]["content"]
    assert content.pop("as_of") == body["as_of"]
    assert content == {
        "value": 100,
        "standard_error": CONTENT.standard_error,
        "lower": 99,
        "upper": 101,
        "updated_at": "2023-11-14T22:13:20Z",
        "suspect": False,
        "messages": 150,
        "reason": None,
    }


def test_one_counter_is_answered_like_in_the_list(client: httpx.Client) -> None:
    one = client.get("/api/v1/counts/release").json()
    listed = client.get("/api/v1/counts").json()["counts"]["release"]
    assert (one.pop("age_seconds"), one.pop("stale")) == (0, False)
    assert {**one, "as_of": ""} == {**listed, "as_of": ""}


def test_a_counter_that_cannot_be_read_is_null_with_its_reason(
    client: httpx.Client, redis_client: Redis
) -> None:
    redis_client.set(RELEASE.keys(PREFIX)[0], "foreign")
    wait_for(lambda: client.get("/api/v1/counts/release").json()["reason"])
    body = client.get("/api/v1/counts").json()["counts"]
    assert body["content"]["value"] == 100
    assert [body["release"][key] for key in ("value", "standard_error", "lower", "upper")] == [None] * 4
    assert "WRONGTYPE" in body["release"]["reason"]


def test_a_new_counter_appears_without_restart(client: httpx.Client, redis_client: Redis) -> None:
    publish(redis_client, CounterSpec("snapshot"), [b"a"])
    wait_for(lambda: "snapshot" in client.get("/api/v1/counts").json()["counts"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/counts/unknown", 404),
        ("GET", "/api/v1/", 404),
        ("GET", "/api/v1/counts/a/b", 404),
        ("POST", "/api/v1/counts", 405),
        ("GET", "/unknown", 404),
        ("GET", "/web/index.html", 404),
        ("GET", "/docs", 404),
    ],
)
def test_an_error_is_a_problem_document(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    body = answer.json()
    assert (body["status"], body["title"]) == (status, HTTPStatus(status).phrase)
    assert body["detail"]


def test_scripts_of_other_sites_may_read_answers_and_errors(client: httpx.Client) -> None:
    for path in ("/api/v1/counts", "/api/v1/counts/unknown"):
        assert client.get(path).headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in client.get("/").headers


def test_every_answer_forbids_foreign_scripts(client: httpx.Client) -> None:
    for path in ("/", "/unknown", "/healthz", "/metrics", "/web/page.js"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_an_unchanged_answer_is_not_sent_twice(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, RELEASE)
    with served(redis_url, interval=60) as client:
        first = client.get("/api/v1/counts")
        again = client.get("/api/v1/counts", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_many_requests_cost_one_read(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, RELEASE, [b"a"])
    redis_client.config_resetstat()
    with served(redis_url, interval=60) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get("/api/v1/counts").status_code, range(40)))
    assert answers == [200] * 40
    assert redis_client.info("commandstats")["cmdstat_pfcount"]["calls"] == 1


def test_the_last_counts_are_kept_while_redis_is_down(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis(data=True)
    with Redis.from_url(server.url) as redis, served(server.url) as client:
        publish(redis, CONTENT, numbered(100))
        wait_for(lambda: client.get("/api/v1/counts").json()["counts"])
        assert client.get("/readyz").json() == {"ready": True, "reasons": []}

        server.kill()
        stale = wait_for(lambda: (body := client.get("/api/v1/counts").json())["stale"] and body)
        assert stale["counts"]["content"]["value"] == 100
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert ready.json()["reasons"][0].startswith("Redis does not answer")
        assert client.get("/healthz").status_code == 200
        assert ("counters_objects", "content") not in samples(client)
        assert samples(client)["counters_read_errors_total", ""] >= 1

        server.restart()
        wait_for(lambda: client.get("/readyz").status_code == 200, message="it did not recover")
        assert client.get("/api/v1/counts").json()["stale"] is False


def test_a_frozen_redis_delays_no_answer(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis, served(server.url) as client:
        publish(redis, RELEASE, [b"a"])
        wait_for(lambda: client.get("/api/v1/counts").json()["counts"])
        server.pause()
        try:
            wait_for(lambda: client.get("/api/v1/counts").json()["stale"], message="it is not stale")
            assert client.get("/healthz").elapsed.total_seconds() < 0.5
        finally:
            server.resume()


def test_counts_that_were_never_read_are_503(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    server.kill()
    with served(server.url) as client:
        answer = client.get("/api/v1/counts")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert answer.headers["retry-after"] == "1"
        assert "127.0.0.1" not in answer.text
        assert "could not be read yet" in client.get("/", headers=BROWSER).text


class Defective:
    """A reader with a defect."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> list[Count]:
        self.reads += 1
        raise ZeroDivisionError


def test_a_defect_does_not_end_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    reader = Defective()
    with served_by(reader, interval=0.01) as client:
        wait_for(lambda: reader.reads > 2)
        assert client.get("/readyz").json()["reasons"] == ["internal error; see the log"]
    assert "ZeroDivisionError" in caplog.text


def test_metrics_carry_the_counts(client: httpx.Client) -> None:
    found = samples(client)
    assert found["counters_objects", "content"] == 100
    assert found["counters_objects_standard_error_ratio", "content"] == CONTENT.standard_error
    assert found["counters_objects_messages_total", "content"] == 150
    assert found["counters_objects_age_seconds", "content"] > 86_400
    assert found["counters_objects_suspect", "content"] == 0
    assert found["counters_read_errors_total", ""] == 0


def test_metrics_have_no_value_for_what_cannot_be_read(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.set(RELEASE.keys(PREFIX)[0], "foreign")
    wait_for(lambda: samples(client)["counters_objects_unreadable", "release"] == 1)
    found = samples(client)
    assert ("counters_objects", "release") not in found
    assert found["counters_objects", "content"] == 100


def test_a_count_that_fell_is_reported_and_not_charted(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.delete(*RELEASE.keys(PREFIX))
    publish(redis_client, RELEASE, [b"a"])
    wait_for(lambda: samples(client)["counters_objects_suspect", "release"] == 1)
    assert ("counters_objects", "release") not in samples(client)
    assert client.get("/api/v1/counts/release").json()["reason"] == "fell from 10 to 1"


def test_metrics_are_served_in_the_format_that_is_asked_for(client: httpx.Client) -> None:
    plain = client.get("/metrics/")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    openmetrics = client.get("/metrics", headers=accept)
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert list(parse_openmetrics(openmetrics.text))


def test_no_gauge_is_named_like_a_counter(client: httpx.Client) -> None:
    families = text_string_to_metric_families(client.get("/metrics").text)
    assert not [f.name for f in families if f.type == "gauge" and f.name.endswith("_total")]


def test_the_description_of_the_api_names_every_field(client: httpx.Client) -> None:
    schemas = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
    body = client.get("/api/v1/counts").json()
    assert set(schemas["CountsBody"]["properties"]) == set(body)
    assert set(schemas["CountBody"]["properties"]) == set(body["counts"]["content"])


def test_the_page_has_the_numbers_before_its_script_runs(client: httpx.Client, redis_client: Redis) -> None:
    publish(redis_client, CONTENT, numbered(20_000))
    wait_for(lambda: client.get("/api/v1/counts/content").json()["value"] > 19_000)
    number = client.get("/api/v1/counts/content").json()["value"]
    assert (
        f'<data value="{number}">{number:,}</data>'.replace(",", GAP) in client.get("/", headers=BROWSER).text
    )


def test_names_are_escaped_on_the_page(client: httpx.Client, redis_client: Redis) -> None:
    publish(redis_client, CounterSpec('<img src=x onerror="1">', precision=14), [b"a"])
    page = wait_for(lambda: "onerror" in (text := client.get("/", headers=BROWSER).text) and text)
    assert "<img src=x" not in page


def test_an_empty_store_shows_what_to_do(redis_url: str) -> None:
    with served(redis_url) as client:
        page = client.get("/", headers=BROWSER).text
    assert "No counters yet" in page
    assert f"<code>{TOPICS}</code>" in page


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_a_signal_and_ends_clean(
    redis_client: Redis, redis_url: str, number: signal.Signals
) -> None:
    publish(redis_client, RELEASE, numbered(10))
    with serve(COUNTERS_REDIS__URL=redis_url) as (process, address):
        assert httpx.get(f"{address}api/v1/counts").json()["counts"]["release"]["value"] == 10
        head = httpx.head(f"{address}healthz")
        assert (head.status_code, head.content) == (200, b"")
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in errors) == (0, False)


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "counters", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == f"counters: port {port} on 127.0.0.1 is in use; set api.port or --port\n"
