"""The clients of swh-counters 0.14, as they come from PyPI, against this project's server and worker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml
from confluent_kafka import Consumer, TopicPartition
from servers.swh import NotInstalled, swh_python

from counters.embedded import EmbeddedRedis
from journal_client.pytest_plugin import PARTITIONS, wait_for

# Installing takes a while, and every call starts a Python of its own.
pytestmark = [pytest.mark.xdist_group("swh"), pytest.mark.timeout(400)]

SIDE = Path(__file__).with_name("swh_side.py")
ROOT = Path(__file__).parents[2]
TOKEN = "an invented token"
TYPES = ["content", "directory", "origin", "release", "revision", "skipped_content", "snapshot"]
NAMES = [*TYPES, "person"]

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def swh() -> Run:
    """``swh("call", …)`` runs a command of ``swh_side.py`` and returns what it printed."""
    try:
        python = swh_python()
    except NotInstalled as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"swh-counters cannot be installed from PyPI: {error}")

    def run(*arguments: object) -> Any:
        command = [python, SIDE, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return literal_eval(done.stdout.splitlines()[-1])

    return run


@contextmanager
def serving(tmp_path: Path, settings: str) -> Iterator[str]:
    """The address of ``counters serve`` with a settings file, in a process of its own."""
    config = tmp_path / "swh.yml"
    config.write_text(settings)
    command = [sys.executable, "-m", "counters", "--config", str(config), "serve", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        wait_for(lambda: _answers(address), message="the server does not answer")
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


def count_to_the_end(config: Path) -> None:
    """Run ``counters count`` with a settings file until everything is read."""
    worker = [sys.executable, "-m", "counters", "--config", config, "count", "--stop-at-end"]
    subprocess.run(worker, cwd=ROOT, check=True, timeout=60)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}healthz").status_code == 200
    except httpx.TransportError:
        return False


def host(url: str) -> str:
    return url.split("/")[2]


def settings_of(url: str, journal: dict[str, Any] | None = None, add: str = "open") -> str:
    """A settings file of swh-counters, and beside it what only this project knows."""
    settings: dict[str, Any] = {
        "counters": {"cls": "redis", "host": host(url)},
        "api": {"token": TOKEN, "legacy": {"add": add}},
    }
    if journal is not None:
        settings["journal"] = {"cls": "kafka", **journal}
    return yaml.safe_dump(settings)


def journal_of(brokers: str, prefix: str, group: str) -> dict[str, Any]:
    """A section ``journal`` as swh-counters has it."""
    real = bool(os.environ.get("KAFKA_BOOTSTRAP_SERVERS"))
    return {
        "brokers": brokers.split(","),
        "prefix": prefix,
        "group_id": group,
        "object_types": TYPES,
        "batch_size": 10,
        # The embedded broker lets the next member wait for it; a real one refuses less than 6 s.
        "session.timeout.ms": 6000 if real else 2000,
    }


@pytest.fixture
def own_url(own_redis: Callable[..., EmbeddedRedis]) -> str:
    # swh-counters takes a host and a port, and uses database 0.
    return own_redis().url


@pytest.fixture
def written(swh: Run, kafka_server: str, journal_prefix: str, create_topics: Run) -> dict[str, int]:
    """How many objects of each type the archive's own writer has written to the journal."""
    create_topics(*TYPES)
    numbers: dict[str, int] = swh("write", kafka_server, journal_prefix)
    return numbers


def counted(url: str) -> dict[str, int]:
    with redis.Redis.from_url(url) as client:
        return {name: int(client.pfcount(name)) for name in NAMES}


def committed(brokers: str, prefix: str, group: str) -> int:
    """Records that the group has committed as read."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group})
    try:
        topics = [TopicPartition(f"{prefix}.{name}", n) for name in TYPES for n in range(PARTITIONS)]
        return sum(max(0, partition.offset) for partition in consumer.committed(topics, timeout=10))
    finally:
        consumer.close()


def test_the_remote_client_gets_what_it_expects(swh: Run, own_url: str, tmp_path: Path) -> None:
    calls = [
        ("check", {}),
        ("add", {"collection": "content", "keys": [b"a", "a", 1, "1", 1.5, 2**70]}),
        ("add", {"collection": "origin", "keys": {b"a": b"value", b"b": None}}),
        ("add", {"collection": "release", "keys": []}),
        ("get_count", {"collection": "content"}),
        ("get_count", {"collection": "unknown"}),
        ("get_counts", {"collections": ["origin", "unknown", "content"]}),
        ("get_counters", {}),
    ]
    with serving(tmp_path, settings_of(own_url)) as address:
        answers = swh("call", address, {}, calls)
    assert answers == [
        True,
        None,
        None,
        None,
        4,
        0,
        {"origin": 2, "unknown": 0, "content": 4},
        [b"content", b"origin"],
    ]
    assert list(answers[6]) == ["origin", "unknown", "content"]


def test_the_remote_client_raises_what_it_is_told(swh: Run, own_url: str, tmp_path: Path) -> None:
    calls = [
        ("add", {"collection": "content", "keys": [None]}),
        ("add", {"collection": "../content", "keys": [b"a"]}),
        ("get_counts", {"collections": 5}),
        ("history", {"cache_file": "other.json"}),
        ("history", {"cache_file": "history.json", "more": 1}),
    ]
    with serving(tmp_path, settings_of(own_url)) as address:
        plain = swh("call", address, {}, calls)
        chosen = swh("call", address, {"reraise_exceptions": ["ValueError", "PermissionError"]}, calls)
    assert [answer[1] for answer in plain] == ["RemoteException"] * 5
    assert "should be bytes, text or a number" in plain[0][2]
    assert [answer[1] for answer in chosen] == [
        "RemoteException",
        "ValueError",
        "RemoteException",
        "RemoteException",
        "RemoteException",
    ]


def test_the_remote_client_can_send_the_token(swh: Run, own_url: str, tmp_path: Path) -> None:
    calls = [("add", {"collection": "content", "keys": [b"a"]})]
    with serving(tmp_path, settings_of(own_url, add="token")) as address:
        [without] = swh("call", address, {}, calls)
        for session in ({"headers": {"Authorization": f"Bearer {TOKEN}"}}, {"auth": ["anybody", TOKEN]}):
            assert swh("call", address, {"session_kwargs": session}, calls) == [None]
    assert without[1] == "RemoteException"
    assert "PermissionError" in without[2]


def test_the_remote_client_tries_again_until_redis_is_back(
    swh: Run, own_redis: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    server = own_redis(data=True)
    count = [("get_count", {"collection": "content"})]
    with serving(tmp_path, settings_of(server.url)) as address:
        swh("call", address, {}, [("add", {"collection": "content", "keys": [b"a"]})])
        server.kill()
        wait_for(lambda: httpx.get(address).status_code == 503)
        [gave_up] = swh("call", address, {}, count)
        assert gave_up[1] == "TransientRemoteException"

        answers: list[Any] = []
        calling = threading.Thread(
            target=lambda: answers.extend(swh("call", address, {"enable_requests_retry": True}, count))
        )
        calling.start()
        server.restart()
        calling.join(timeout=60)
    assert answers == [1]


def test_the_servers_file_keeps_the_metrics_that_are_scraped(own_url: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_url) as client:
        client.pfadd("content", "a", "b")
    with serving(tmp_path, settings_of(own_url)) as address:
        answer = httpx.get(f"{address}metrics")
    assert 'swh_archive_object_total{col="value", object_type="content"} 2\n' in answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")


def test_the_old_journal_client_counts_through_this_server(
    swh: Run,
    own_redis: Callable[..., EmbeddedRedis],
    written: dict[str, int],
    kafka_server: str,
    journal_prefix: str,
    tmp_path: Path,
) -> None:
    direct, through = own_redis().url, own_redis().url
    records = sum(written.values())
    one, other = (journal_of(kafka_server, journal_prefix, group) for group in ("direct", "through"))
    swh("count", one, records, {"cls": "redis", "host": host(direct)})
    with serving(tmp_path, settings_of(through)) as address:
        swh("count", other, records, {"cls": "remote", "url": address})
        [counts] = swh("call", address, {}, [("get_counts", {"collections": NAMES})])
    assert counts == counted(through) == counted(direct)
    assert counts["content"] == written["content"]


def test_a_redis_filled_by_the_old_journal_client_is_served_and_counted_on(
    swh: Run,
    own_url: str,
    written: dict[str, int],
    kafka_server: str,
    journal_prefix: str,
    journal_group: str,
    tmp_path: Path,
) -> None:
    journal = journal_of(kafka_server, journal_prefix, journal_group)
    swh("count", journal, sum(written.values()), {"cls": "redis", "host": host(own_url)})
    before = counted(own_url)
    with serving(tmp_path, settings_of(own_url, journal)) as address:
        [served] = swh("call", address, {}, [("get_counts", {"collections": NAMES})])
        assert served == before
        count_to_the_end(tmp_path / "swh.yml")
    assert counted(own_url) == before
    with redis.Redis.from_url(own_url) as client:
        noted = client.hgetall(f"{{counters}}:offsets:{journal_group}")
    # What the old client committed is not read again: no topic has records counted.
    assert [field for field in noted if b":" not in field] == []


def test_this_worker_reads_what_the_archives_writer_wrote(
    swh: Run,
    own_redis: Callable[..., EmbeddedRedis],
    written: dict[str, int],
    kafka_server: str,
    journal_prefix: str,
    journal_group: str,
    tmp_path: Path,
) -> None:
    theirs, ours = own_redis().url, own_redis().url
    old, new = (journal_of(kafka_server, journal_prefix, group) for group in ("theirs", journal_group))
    swh("count", old, sum(written.values()), {"cls": "redis", "host": host(theirs)})
    config = tmp_path / "swh.yml"
    config.write_text(settings_of(ours, new))
    count_to_the_end(config)
    assert counted(ours) == counted(theirs)


def test_going_back_the_old_journal_client_reads_on_where_this_worker_ended(
    swh: Run,
    own_url: str,
    written: dict[str, int],
    kafka_server: str,
    journal_prefix: str,
    journal_group: str,
    tmp_path: Path,
) -> None:
    journal, records = journal_of(kafka_server, journal_prefix, journal_group), sum(written.values())
    config = tmp_path / "swh.yml"
    config.write_text(settings_of(own_url, journal))
    count_to_the_end(config)
    counts = counted(own_url)
    with redis.Redis.from_url(own_url) as client:
        client.delete(*client.scan_iter(match="{counters}:*"))
        assert {name.decode() for name in client.scan_iter()} == set(NAMES)
    swh("write", kafka_server, journal_prefix)
    # It ends after as many records as were written since; from the beginning it would have ended earlier.
    swh("count", journal, records, {"cls": "redis", "host": host(own_url)})
    assert committed(kafka_server, journal_prefix, journal_group) == 2 * records
    assert counted(own_url) == counts
