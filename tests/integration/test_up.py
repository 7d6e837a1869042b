"""The whole system in one command, as a person starts and ends it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from repositories import GitRepository

from counters.history.store import HistoryStore
from journal_client.pytest_plugin import wait_for

# The broker inside needs a session timeout to let a member go, so one start takes some seconds.
pytestmark = pytest.mark.xdist_group("up")

STANDARD_ERROR_18 = 0.008125 / 4

KIND = {"content": "blob", "directory": "tree", "revision": "commit"}
"""Git's names of what is counted."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Up:
    """A running ``counters up``."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self.port = free_port()
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "counters", "up", "--port", str(self.port), *map(str, arguments)],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()
        self.seconds_to_address = time.monotonic() - self._started
        self.second_line = self.process.stdout.readline().strip()

    def counts(self) -> dict[str, dict[str, Any]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/counts", timeout=5) as answer:
            counts: dict[str, dict[str, Any]] = json.load(answer)["counts"]
            return counts

    def messages(self, object_type: str) -> int:
        return int(self.counts().get(object_type, {}).get("messages") or 0)

    def redis(self) -> redis.Redis:
        found = re.search(r"redis://\S+(?=;)", self.second_line)
        assert found, self.second_line
        return redis.Redis.from_url(found[0])

    def family(self) -> list[psutil.Process]:
        """This process and everything it started, directly or not."""
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    with ExitStack() as running:

        def start(*arguments: str | Path, cwd: Path = tmp_path) -> Up:
            system = Up(*arguments, cwd=cwd)
            running.callback(system.close)
            return system

        yield start


@pytest.fixture
def repositories(tmp_path: Path) -> list[GitRepository]:
    """Three repositories; the second is a fork of the first."""
    first = GitRepository.create(tmp_path / "first")
    for n in range(12):
        first.commit({f"src/module{n}/file{m}.txt": f"{n} {m}\n" for m in range(40)}, f"change {n}")
    fork = first.clone(tmp_path / "fork")
    fork.git("remote", "set-url", "origin", "https://forge.example.org/fork.git")
    for n in range(4):
        fork.commit({f"fork/{n}.txt": f"fork {n}\n"}, f"fork {n}")
    other = GitRepository.create(tmp_path / "other")
    for n in range(6):
        other.commit({f"other/{n}/{m}.txt": f"other {n} {m}\n" for m in range(20)}, f"other {n}")
    return [first, fork, other]


def distinct(repositories: list[GitRepository], object_type: str) -> int:
    """What git says of all of them together."""
    return len(set().union(*(repository.reachable()[KIND[object_type]] for repository in repositories)))


def published(repositories: list[GitRepository], object_type: str) -> int:
    """Records that loading them one after the other writes."""
    return sum(len(repository.reachable()[KIND[object_type]]) for repository in repositories)


def all_counted(system: Up, repositories: list[GitRepository], object_type: str) -> bool:
    return system.messages(object_type) == published(repositories, object_type)


def tolerance(exact: int) -> float:
    """Three standard errors; none up to 50 objects."""
    return 0 if exact <= 50 else max(3, 3 * STANDARD_ERROR_18 * exact)


def test_counts_of_three_repositories_with_a_fork_are_those_of_their_union(
    up: Callable[..., Up], repositories: list[GitRepository]
) -> None:
    system = up(*(repository.path for repository in repositories))
    for object_type in KIND:
        wait_for(partial(all_counted, system, repositories, object_type), 40, object_type)
    wait_for(lambda: system.messages("origin") == 3, 40, "three origins")
    counts = system.counts()
    for object_type in KIND:
        exact = distinct(repositories, object_type)
        assert abs(counts[object_type]["value"] - exact) <= tolerance(exact), object_type
    assert counts["origin"]["value"] == 3
    assert counts["person"]["value"] == 2


def test_loading_the_same_repositories_again_changes_no_count(
    up: Callable[..., Up], repositories: list[GitRepository]
) -> None:
    paths = [repository.path for repository in repositories]
    system = up(*paths, *paths)
    wait_for(lambda: system.messages("origin") == 6, 40, "everything is counted twice over")
    wait_for(lambda: system.messages("content") == 2 * published(repositories, "content"), 30)
    wait_for(lambda: system.messages("revision") == 2 * published(repositories, "revision"), 30)
    counts = system.counts()
    twice = {name: count["value"] for name, count in counts.items()}
    registers = {key: system.redis().get(key) for key in system.redis().keys("{counters}:hll:content:*")}
    once = up(*paths)
    wait_for(lambda: once.messages("origin") == 3, 40)
    wait_for(lambda: once.messages("content") == published(repositories, "content"), 30)
    wait_for(lambda: once.messages("revision") == published(repositories, "revision"), 30)
    assert {name: count["value"] for name, count in once.counts().items()} == twice
    assert {key: value[16:] for key, value in registers.items()} == {
        key: once.redis().get(key)[16:] for key in registers
    }


def test_the_address_is_printed_within_ten_seconds(up: Callable[..., Up], tmp_path: Path) -> None:
    system = up(GitRepository.create(tmp_path / "empty").path)
    assert system.first_line == f"counters: http://127.0.0.1:{system.port}/"
    assert system.seconds_to_address < 10


def test_it_counts_the_repository_it_stands_in(up: Callable[..., Up], tmp_path: Path) -> None:
    here = GitRepository.create(tmp_path / "here")
    here.commit({"a.txt": "a", "b.txt": "b"})
    system = up(cwd=here.path)
    wait_for(lambda: system.messages("content") == 2, 30, "two contents")


def test_without_a_repository_it_waits_for_whoever_publishes(up: Callable[..., Up], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    system = up(cwd=nowhere)
    assert "Kafka at 127.0.0.1:" in system.second_line
    assert system.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_everything_and_leaves_no_process(
    up: Callable[..., Up], repositories: list[GitRepository], number: signal.Signals
) -> None:
    system = up(repositories[0].path)
    family = system.family()
    assert len(family) > 8
    assert system.end(number) == 0
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_kill_9_leaves_no_process_either(up: Callable[..., Up], repositories: list[GitRepository]) -> None:
    system = up(repositories[0].path)
    family = system.family()
    system.process.kill()
    system.process.wait(timeout=10)
    assert psutil.wait_procs(family, timeout=15)[1] == []


def test_data_keeps_the_counts_over_a_restart(
    up: Callable[..., Up], repositories: list[GitRepository], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    first = up("--data", data, repositories[0].path)
    wait_for(lambda: first.messages("content") == published(repositories[:1], "content"), 30)
    before = first.counts()["content"]["value"]
    first.end()
    second = up("--data", data, repositories[2].path)
    wait_for(lambda: second.messages("content") == published(repositories[2:], "content"), 30)
    exact = distinct([repositories[0], repositories[2]], "content")
    assert second.counts()["content"]["value"] > before
    assert abs(second.counts()["content"]["value"] - exact) <= tolerance(exact)


def test_data_in_use_is_one_line(up: Callable[..., Up], tmp_path: Path) -> None:
    data = tmp_path / "data"
    up("--data", data)
    ended = subprocess.run(
        [sys.executable, "-m", "counters", "up", "--port", str(free_port()), "--data", str(data)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"counters: {data} is in use by another counters up; end that one or change --data"
    )


def test_there_is_a_history_within_a_minute(up: Callable[..., Up], repositories: list[GitRepository]) -> None:
    system = up(repositories[0].path)
    with system.redis() as client:
        store = HistoryStore(client, "counters")
        history = wait_for(lambda: store.load(), 60, "no history appears")
    assert history is not None
    assert len(history.series["content"]) > 0


def test_a_worker_that_dies_ends_everything_with_its_last_words(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    system = up(GitRepository.create(tmp_path / "empty").path)
    worker = next(
        p for p in system.family() if p.cmdline()[-1:] == ["count"] and "leash" not in str(p.cmdline())
    )
    worker.kill()
    assert system.process.wait(timeout=20) == 2
    assert system.process.stdout is not None
    assert "counters: worker-" in system.process.stdout.read()


def test_a_server_that_dies_ends_everything(up: Callable[..., Up], tmp_path: Path) -> None:
    system = up(GitRepository.create(tmp_path / "empty").path)
    [redis] = [p for p in system.family() if "redis-server" in p.name() or "valkey-server" in p.name()]
    redis.kill()
    assert system.process.wait(timeout=20) == 2
    assert system.process.stdout is not None
    assert "counters: Redis ended" in system.process.stdout.read()


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "counters", "up", "--port", str(port)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == f"counters: port {port} on 127.0.0.1 is in use; set api.port or --port\n"
