"""Long tasks run through the command line: in this process, or in one that may be killed.

In both, batches are small and something may happen at the n-th: ``before 3`` its work, or ``after 3``, when
the work is done. Where the record of a batch is a write of its own, that comes later still.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from counting import STORE, expected, stored
from prometheus_client import CollectorRegistry
from reading import assert_balanced, write
from redis import Redis

from counters.checkpoints.model import AlreadyRunning
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.runner import Batch, Done, Run, Turn, run_batches
from counters.cli import run
from counters.config import ObjectsSettings
from counters.objects.metrics import WorkerMetrics
from counters.objects.store import CounterStore
from counters.objects.worker import CountingHandler
from journal_client.client import JournalClient
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for
from journal_client.serialization import encode_value

PRECISION = 15
PROCESS = Path(__file__).with_name("task_process.py")

DERIVED = {"person": {"revision": ["author.fullname"], "release": ["author.fullname"]}}
"""The setting ``objects.derived`` of those tests that look into messages."""

Happens = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class System:
    """Servers, and the settings by which a command finds them."""

    journal: JournalSettings
    redis_url: str
    folder: Path
    objects: Mapping[str, Any] = field(default_factory=dict)

    def topic(self, object_type: str) -> str:
        """The topic about an object type."""
        return f"{self.journal.prefix}.{object_type}"

    def checkpoints(self) -> RedisCheckpoints:
        """The rows of the tasks, by a client of their own."""
        return RedisCheckpoints(Redis.from_url(self.redis_url), STORE)

    def looking_for(self, derived: Mapping[str, Any]) -> System:
        """The same with another setting ``objects.derived``."""
        return replace(self, objects={"derived": derived})

    def count(self, redis: Redis) -> None:
        """Have a worker count what is there."""
        assert_balanced(self.worker(redis, stop_at_end=True).run())

    def worker(self, redis: Redis, **changes: object) -> JournalClient:
        """A member of the group, to be run."""
        objects = ObjectsSettings.model_validate({"precision": PRECISION, "derived": {}, **self.objects})
        store = CounterStore(redis, STORE, self.journal.group_id)
        handler = CountingHandler(store, objects, self.journal.prefix, WorkerMetrics(CollectorRegistry()))
        return JournalClient(self.journal.model_copy(update=changes), handler)

    def run(
        self, *arguments: str, batch: int = 100, at: Mapping[str, Callable[[], object]] | None = None
    ) -> Ended:
        """Run a command in this process. ``at`` maps moments of batches to what is to happen then."""
        moments = dict(at or {})
        out, err = io.StringIO(), io.StringIO()

        def happens(moment: str) -> None:
            if moment in moments:
                moments[moment]()

        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("os.nice"),
            mock.patch("tempfile.gettempdir", return_value=str(self.folder)),
            small_batches(batch, happens),
        ):
            code = run(["--config", str(self.config()), *arguments])
        return Ended(code, out.getvalue(), err.getvalue())

    @contextmanager
    def process(
        self, *arguments: str, batch: int = 100, at: Mapping[str, str] | None = None
    ) -> Iterator[Process]:
        """Run a command in another process. ``at`` maps moments to ``kill`` or ``hold``."""
        accidents = {"batch": batch, "at": dict(at or {})}
        command = [sys.executable, str(PROCESS), json.dumps(accidents), "--config", str(self.config())]
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        with (
            log.open("wb") as stderr,
            subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "TMPDIR": str(self.folder)},
            ) as started,
        ):
            try:
                yield Process(started, log)
            finally:
                started.kill()

    def config(self) -> Path:
        """A settings file."""
        path = self.folder / "settings.yaml"
        settings = {
            "journal": self.journal.model_dump(mode="json"),
            "redis": {"url": self.redis_url, "timeout": 2},
            "objects": {"precision": PRECISION, "derived": {}, **self.objects},
        }
        path.write_text(json.dumps(settings))  # JSON is YAML
        return path


@dataclass(frozen=True, slots=True)
class Process:
    """A running command."""

    popen: subprocess.Popen[str]
    log: Path

    @property
    def said(self) -> str:
        """Everything it said on standard error so far."""
        return self.log.read_text(errors="replace")

    def expect(self, words: str, timeout: float = 30.0) -> None:
        """Wait until it said ``words``."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: words in self.said or self.popen.poll() is not None, timeout)
        assert words in self.said, f"it did not say {words!r}:\n{self.said}"

    def release(self) -> None:
        """Let a process on hold go on."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    def end(self, timeout: float = 40.0) -> Ended:
        """Wait for its end."""
        out, _ = self.popen.communicate(timeout=timeout)
        return Ended(self.popen.returncode, out, self.said)


@contextmanager
def small_batches(size: int, happens: Happens) -> Iterator[None]:
    """Batches of ``size`` items for all tasks, and quick looks; ``happens`` is told every moment."""
    modules = ("backfill", "rebuild", "verify")
    with contextlib.ExitStack() as patches:
        for module in modules:
            patches.enter_context(mock.patch(f"counters.objects.{module}.BATCH", size))
        patches.enter_context(mock.patch("counters.cli.tasks.RETRY", 0.05))
        patches.enter_context(mock.patch("counters.cli.tasks.LOOK", 0.02))
        patches.enter_context(mock.patch("counters.cli.tasks.run_batches", _eventful(happens)))
        yield


def _eventful(happens: Happens) -> Callable[..., Run]:
    number = 0

    def run_eventfully(store: object, name: str, batch: Batch, **options: Any) -> Run:
        def eventful(turn: Turn) -> Done:
            nonlocal number
            number += 1
            happens(f"before {number}")
            done = batch(turn)
            happens(f"after {number}")
            return done

        return run_batches(store, name, eventful, **options)  # type: ignore[arg-type]

    return run_eventfully


def revisions(count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Records by a third as many people."""
    return [
        (b"revision-%d" % n, encode_value({"author": {"fullname": b"Person %d" % (n // 3)}}))
        for n in range(count)
    ]


def people(count: int) -> list[bytes]:
    """Those of ``revisions(count)``."""
    return sorted({b"Person %d" % (n // 3) for n in range(count)})


def assert_counted(redis: Redis, counter: str, keys: list[bytes]) -> None:
    """The registers are those of the keys, exactly."""
    assert np.array_equal(stored(redis, counter, PRECISION), expected(keys, PRECISION))


def hex_dump(system: System, keys: list[bytes], name: str = "keys.hex") -> str:
    """The path of a file with the keys."""
    path = system.folder / name
    path.write_text("".join(f"{key.hex()}\n" for key in keys))
    return str(path)


def claimable(store: RedisCheckpoints, name: str) -> bool:
    """Whether nobody runs the task."""
    try:
        store.claim(name).release()
    except AlreadyRunning:
        return False
    return True


def write_keys(system: System, object_type: str, keys: Mapping[int, list[bytes]]) -> None:
    """Write keys to chosen partitions of the topic about ``object_type``."""
    write(system.journal.brokers, system.topic(object_type), keys)


def expire(system: System, object_type: str, partition: int) -> None:
    """Let the broker drop all records that a partition has so far, and some of those that follow."""
    large = [(b"large-%d" % number, bytes(40_000)) for number in range(200)]
    write(system.journal.brokers, system.topic(object_type), {partition: large})
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):  # the embedded broker keeps 5 MiB
        admin = AdminClient({"bootstrap.servers": system.journal.brokers, "log_level": 0})
        end = TopicPartition(system.topic(object_type), partition, OFFSET_END)
        for deleted in admin.delete_records([end]).values():
            deleted.result(timeout=20)
