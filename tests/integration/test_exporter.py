"""``counters exporter`` over a real Redis, which may hang or be gone, scraped by a real Prometheus."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from promtool import need
from published import GROUP, PREFIX, TOPICS, numbered, publish
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from serving import running

from counters.checkpoints.operations import Operations
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.snapshots import EXPORTED, Snapshot, Snapshots
from counters.embedded import EmbeddedRedis
from counters.exporter import Reading, Scrapes, StoreReader, create_exporter
from counters.history.series import Series
from counters.history.store import HistoryStore
from counters.objects.reader import CountsReader
from counters.objects.spec import CounterSpec
from journal_client.leash import LeashedProcess
from journal_client.pytest_plugin import wait_for

CONTENT = CounterSpec("content", precision=16)
RELEASE = CounterSpec("release", precision=14)
DEADLINE = 0.5
ANSWER_WITHIN = DEADLINE + 0.5
"""Room for two busy cores; far below what the socket would wait."""


@contextmanager
def exporting(url: str, *, legacy: bool = False) -> Iterator[httpx.Client]:
    """An exporter whose connections wait far longer than its deadline."""
    with Redis.from_url(url, socket_timeout=30.0, retry=Retry(NoBackoff(), 0)) as redis:
        operations = Operations([RedisCheckpoints(redis, PREFIX)])
        reader = StoreReader(
            redis,
            CountsReader(redis, PREFIX, GROUP, TOPICS),
            HistoryStore(redis, PREFIX),
            Snapshots(lambda: Snapshot.read(operations)),
        )
        app = create_exporter(Scrapes(reader.read, DEADLINE), legacy=legacy)
        with running(app) as address, httpx.Client(base_url=address) as client:
            yield client


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CONTENT, numbered(100), messages=150, stamp=1_700_000_000_000)
    publish(redis_client, RELEASE, numbered(10))
    with exporting(redis_url) as client:
        yield client


def samples(client: httpx.Client) -> dict[tuple[str, str], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_scrape_has_the_counts_with_error_and_age(client: httpx.Client) -> None:
    found = samples(client)
    assert found["counters_objects", "content"] == 100
    assert found["counters_objects_standard_error_ratio", "content"] == CONTENT.standard_error
    assert found["counters_objects_age_seconds", "content"] > 86_400
    assert found["counters_objects_messages_total", "content"] == 150
    assert (found["counters_store_unavailable", ""], found["counters_read_errors_total", ""]) == (0, 0)


def test_counts_are_read_when_they_are_scraped(client: httpx.Client, redis_client: Redis) -> None:
    assert samples(client)["counters_objects", "release"] == 10
    publish(redis_client, RELEASE, numbered(20))
    assert samples(client)["counters_objects", "release"] == 20


def test_a_foreign_key_costs_only_its_own_counter(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.set(RELEASE.keys(PREFIX)[0], "foreign")
    found = samples(client)
    assert ("counters_objects", "release") not in found
    assert found["counters_objects_unreadable", "release"] == 1
    assert found["counters_objects", "content"] == 100


def test_a_task_is_published_with_the_counts(client: httpx.Client, redis_client: Redis) -> None:
    RedisCheckpoints(redis_client, PREFIX).pause("backfill:content")
    assert samples(client)["task_paused", "backfill:content"] == 1


def test_tasks_that_cannot_be_read_cost_only_themselves(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.set(f"{{{PREFIX}}}:checkpoints", "foreign")
    found = samples(client)
    assert not [name for name, _ in found if name.startswith(("task_", "batch_items"))]
    assert found["counters_objects", "content"] == 100


def test_a_hundred_thousand_tasks_hold_up_no_scrape(client: httpx.Client, redis_client: Redis) -> None:
    store, key = RedisCheckpoints(redis_client, PREFIX), f"{{{PREFIX}}}:checkpoints"
    store.pause("backfill:content")
    stored = redis_client.hget(key, "backfill:content")
    rows = {f"backfill:n{number}": stored for number in range(100_000)}
    redis_client.hset(key, mapping=rows)
    answer = client.get("/metrics")
    assert answer.elapsed.total_seconds() < ANSWER_WITHIN
    assert "counters_objects{" in answer.text
    # a later scrape has those that were read meanwhile
    wait_for(lambda: len([name for name, _ in samples(client) if name == "task_paused"]) == EXPORTED)


def test_both_spellings_of_the_path_answer_without_a_redirect(client: httpx.Client) -> None:
    assert [client.get(path).status_code for path in ("/metrics", "/metrics/")] == [200, 200]


def test_the_legacy_family_is_there_on_request(client: httpx.Client, redis_url: str) -> None:
    line = 'swh_archive_object_total{col="value", object_type="release"} 10\n'
    assert line not in client.get("/metrics").text
    assert line in client.get("/metrics?legacy=1").text
    with exporting(redis_url, legacy=True) as adopted:
        assert line in adopted.get("/metrics").text


def test_a_frozen_redis_is_an_error_within_the_deadline(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis, exporting(server.url) as client:
        publish(redis, RELEASE, numbered(10))
        assert samples(client)["counters_objects", "release"] == 10
        server.pause()
        try:
            answer = client.get("/metrics")
        finally:
            server.resume()
        assert answer.elapsed.total_seconds() < ANSWER_WITHIN
        assert "counters_store_unavailable 1.0" in answer.text
        assert not re.search(r"^counters_objects\{", answer.text, re.MULTILINE)
        wait_for(lambda: samples(client).get(("counters_objects", "release")) == 10)
        assert client.get("/readyz").status_code == 200


def test_scrapes_of_a_frozen_redis_share_one_read(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with exporting(server.url) as client, ThreadPoolExecutor(40) as scrapers:
        samples(client)
        server.pause()
        try:
            answers = list(scrapers.map(lambda _: client.get("/metrics"), range(40)))
            reading = [thread for thread in threading.enumerate() if thread.name == "scrape"]
        finally:
            server.resume()
    assert len(reading) == 1
    assert all("counters_read_errors_total 1.0" in answer.text for answer in answers)
    assert max(answer.elapsed.total_seconds() for answer in answers) < ANSWER_WITHIN + 1


def test_a_dead_redis_is_told_and_recovers_without_a_restart(
    own_redis: Callable[..., EmbeddedRedis],
) -> None:
    server = own_redis(data=True)
    with Redis.from_url(server.url) as redis, exporting(server.url) as client:
        publish(redis, RELEASE, numbered(10))
        samples(client)
        server.kill()
        found = samples(client)
        assert found["counters_store_unavailable", ""] == 1
        assert found["counters_read_errors_total", ""] == 1
        assert ("counters_objects", "release") not in found
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert ready.json()["reasons"][0].startswith("Redis does not answer")
        server.restart()
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert samples(client)["counters_store_unavailable", ""] == 0


def test_a_defect_costs_the_scrape_and_not_the_process(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Reading:
        raise ZeroDivisionError

    app = create_exporter(Scrapes(read, DEADLINE))
    with running(app) as address, httpx.Client(base_url=address) as client:
        assert [samples(client)["counters_read_errors_total", ""] for _ in range(2)] == [1, 2]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("options", "aof", "rdb", "evicting"),
    [
        ({"data": True}, 1, 0, 0),
        ({"save": "3600 1"}, 0, 1, 0),
        ({"maxmemory_policy": "allkeys-lru"}, 0, 0, 1),
    ],
)
def test_it_tells_whether_redis_keeps_the_counters(
    own_redis: Callable[..., EmbeddedRedis],
    options: dict[str, str],
    aof: float,
    rdb: float,
    evicting: float,
) -> None:
    with exporting(own_redis(**options).url) as client:
        found = samples(client)
    assert found["counters_redis_persistence", "aof"] == aof
    assert found["counters_redis_persistence", "rdb"] == rdb
    assert found["counters_redis_evicting", ""] == evicting


def test_a_server_that_does_not_tell_is_not_judged(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis, exporting(server.url) as client:
        publish(redis, RELEASE, numbered(10))
        redis.execute_command("ACL", "SETUSER", "default", "-config")
        found = samples(client)
    assert not [name for name, _ in found if name == "counters_redis_persistence"]
    assert (found["counters_objects", "release"], found["counters_redis_evicting", ""]) == (10, 0)


def test_the_age_of_the_history_is_published_once_there_is_one(
    client: httpx.Client, redis_client: Redis
) -> None:
    assert ("counters_history_age_seconds", "") not in samples(client)
    store = HistoryStore(redis_client, PREFIX)
    with store.claim() as claim:
        assert store.write("default", claim, {"content": Series(np.array([1]), np.array([2.0]))}, every=60.0)
        assert samples(client)["counters_history_stale", ""] == 0
        store.fail("default", claim, "Prometheus is down")
    found = samples(client)
    assert 0 <= found["counters_history_age_seconds", ""] < 60
    assert found["counters_history_stale", ""] == 1


def test_a_history_that_failed_from_the_start_is_stale_and_has_no_age(
    client: httpx.Client, redis_client: Redis
) -> None:
    store = HistoryStore(redis_client, PREFIX)
    with store.claim() as claim:
        store.fail("default", claim, "history.url is wrong")
    found = samples(client)
    assert found["counters_history_stale", ""] == 1
    assert ("counters_history_age_seconds", "") not in found


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes ``target``, with its data in ``folder``."""
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms}\n"
        f"scrape_configs: [{{job_name: exporter, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [need("prometheus"), f"--config.file={config}", f"--web.listen-address={address}"]
    process = LeashedProcess([*command, f"--storage.tsdb.path={folder / 'data'}"], log=folder / "log")
    try:
        with httpx.Client(base_url=f"http://{address}") as client:
            yield client
    finally:
        process.close()


def test_prometheus_scrapes_it(client: httpx.Client, tmp_path: Path) -> None:
    def ask(query: str) -> list[dict[str, object]]:
        try:
            answer = server.get("/api/v1/query", params={"query": query})
        except httpx.TransportError:  # it is starting
            return []
        return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []

    with prometheus(client.base_url.netloc.decode(), tmp_path) as server:
        [series] = wait_for(lambda: ask('max by (object_type) (counters_objects{object_type="content"})'))
        up = ask("up")
    assert series["value"][1] == "100"  # type: ignore[index]
    assert up[0]["value"][1] == "1"  # type: ignore[index]


@contextmanager
def export(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``counters exporter`` in a process of its own, and the address it prints."""
    command = [sys.executable, "-m", "counters", "exporter", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found
            yield process, found[0]
        finally:
            process.kill()


def test_the_command_answers_until_a_signal_and_ends_clean(redis_client: Redis, redis_url: str) -> None:
    publish(redis_client, RELEASE, numbered(10))
    settings = {"COUNTERS_REDIS__URL": redis_url, "COUNTERS_EXPORTER__LEGACY_FAMILY": "true"}
    with export("--port", "0", **settings) as (process, address):
        text = httpx.get(address).text
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert 'counters_objects{object_type="release"} 10.0' in text
    assert 'swh_archive_object_total{col="value", object_type="release"} 10' in text
    assert (process.returncode, "Traceback" in errors) == (0, False)


def test_the_command_ends_while_redis_hangs(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    settings = {"COUNTERS_REDIS__URL": server.url, "COUNTERS_EXPORTER__DEADLINE": "0.3"}
    with export("--port", "0", **settings) as (process, address):
        server.pause()
        try:
            assert "counters_store_unavailable 1.0" in httpx.get(address).text
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
        finally:
            server.resume()
    assert process.returncode == 0
    assert time.monotonic() - began < 5


def test_a_port_in_use_names_the_setting_of_the_exporter() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "counters", "exporter", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == f"counters: port {port} on 127.0.0.1 is in use; set exporter.port or --port\n"
