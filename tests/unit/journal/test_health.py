"""Alive, ready, and why not: as data and over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from journal_client.batch import Partition
from journal_client.config import HttpSettings
from journal_client.errors import ConfigurationError
from journal_client.health import LOOP_DEADLINE, Health, HealthServer, Stalls
from journal_client.ledger import Ledger
from journal_client.metrics import JournalMetrics

A, B = Partition("t", 0), Partition("t", 1)

Positions = dict[Partition, tuple[int, int]]


@pytest.mark.parametrize(
    ("observations", "stalled"),
    [
        ([(0, {A: (5, 9)}), (10, {A: (5, 9)})], []),  # exactly the limit
        ([(0, {A: (5, 9)}), (11, {A: (5, 9)})], [A]),
        ([(0, {A: (5, 9)}), (9, {A: (6, 9)}), (18, {A: (6, 9)})], []),  # it moved
        ([(0, {A: (5, 9)}), (9, {A: (3, 9)}), (18, {A: (3, 9)})], []),  # back is a move too
        ([(0, {A: (9, 9)}), (11, {A: (9, 9)})], []),  # nothing waits
        ([(0, {A: (9, 9)}), (11, {A: (9, 12)})], []),  # records just came
        ([(0, {A: (9, 9)}), (11, {A: (9, 12)}), (22, {A: (9, 12)})], [A]),
        ([(0, {A: (5, 9)}), (5, {}), (6, {A: (5, 9)}), (12, {A: (5, 9)})], []),  # it was not ours meanwhile
        ([(0, {A: (5, 9), B: (5, 9)}), (11, {A: (6, 9), B: (5, 9)})], [B]),
        ([(0, {B: (5, 9), A: (5, 9)}), (11, {B: (5, 9), A: (5, 9)})], [A, B]),
        ([(0, {A: (5, 9)}), (11, {A: (5, 9)}), (12, {A: (6, 9)})], []),  # it went on
    ],
)
def test_a_partition_stalls_when_records_wait_and_it_does_not_move(
    observations: list[tuple[float, Positions]], stalled: list[Partition]
) -> None:
    stalls = Stalls(after=10)
    found: list[Partition] = []
    for now, positions in observations:
        found = stalls.observe(positions, now)
    assert found == stalled


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """A reader that just turned and is subscribed."""
    health = Health(clock=clock, started=True)
    health.turn()
    return health


def test_a_reader_that_turns_is_alive_and_ready(health: Health, clock: Clock) -> None:
    clock.now += LOOP_DEADLINE
    assert health.why_not_alive() == []
    assert health.why_not_ready() == []


def test_a_reader_that_turns_no_more_is_neither_alive_nor_ready(health: Health, clock: Clock) -> None:
    clock.now += LOOP_DEADLINE + 3
    assert health.why_not_alive() == ["the loop has not turned for 123 s"]
    assert health.why_not_ready() == ["the loop has not turned for 123 s"]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ({"started": False}, "not subscribed yet"),
        ({"store_problem": "Redis: OOM"}, "the store takes no batches: Redis: OOM"),
        ({"settling_problem": "Kafka: timed out"}, "partitions cannot start: Kafka: timed out"),
        ({"brokers_down": True}, "no Kafka broker answers"),
        ({"stalled": [A]}, "t[0] has records waiting and does not move"),
    ],
)
def test_a_problem_makes_the_reader_unready_with_its_reason_and_leaves_it_alive(
    health: Health, problem: dict[str, object], reason: str
) -> None:
    for name, value in problem.items():
        setattr(health, name, value)
    assert health.why_not_ready() == [reason]
    assert health.why_not_alive() == []


Get = Callable[[str], tuple[int, str, str]]
"""Path to status, content type and body."""


@pytest.fixture
def get(health: Health) -> Iterator[Get]:
    """Asks the HTTP port of ``health``."""
    registry = CollectorRegistry()
    JournalMetrics(registry, Ledger()).topic_missing.labels("t").set(1)
    with closing(HealthServer(HttpSettings(port=0), health, registry)) as server:

        def ask(path: str) -> tuple[int, str, str]:
            try:
                with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
                    return answer.status, answer.headers["Content-Type"], answer.read().decode()
            except HTTPError as error:
                with error:
                    return error.code, error.headers["Content-Type"], error.read().decode()

        yield ask


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/readyz/"])
def test_a_healthy_reader_answers_200_without_reasons(get: Get, path: str) -> None:
    status, kind, body = get(path)
    assert (status, kind, json.loads(body)) == (200, "application/json", {"ok": True, "reasons": []})


def test_a_reader_that_is_not_ready_answers_503_with_reasons(get: Get, health: Health) -> None:
    health.brokers_down = True
    status, kind, body = get("/readyz")
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"ok": False, "reasons": ["no Kafka broker answers"]}


def test_liveness_does_not_depend_on_servers(get: Get, health: Health) -> None:
    health.brokers_down, health.store_problem = True, "down"
    assert get("/livez")[0] == 200


def test_a_dead_loop_answers_503_to_both(get: Get, clock: Clock) -> None:
    clock.now += 2 * LOOP_DEADLINE
    assert (get("/livez")[0], get("/readyz")[0]) == (503, 503)


def test_metrics_are_served_as_text_of_a_known_version(get: Get) -> None:
    status, kind, body = get("/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert "version=" in kind
    assert 'journal_topic_missing{topic="t"} 1.0' in body.splitlines()


def test_an_unknown_path_says_what_there_is(get: Get) -> None:
    status, _, body = get("/")
    assert status == 404
    assert "/readyz" in body


def test_a_port_in_use_is_an_error_that_names_the_setting(health: Health) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}: .*journal\.http"):
            HealthServer(HttpSettings(port=port), health, CollectorRegistry())
