"""The whole system on one machine: embedded Kafka and Redis, workers, and the API, as child processes.

Nothing outlives this process: every child is on a leash. The embedded broker is empty at every start while
Redis may keep its data, so positions are forgotten before the workers start. That is harmless: counting a key
twice changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from counters.config import HistorySettings, Settings
from counters.embedded import EmbeddedRedis
from counters.errors import CountersError
from counters.objects.store import CounterStore
from counters.redis import connect
from journal_client.config import GroupProtocol, JournalSettings, OffsetReset
from journal_client.embedded import EmbeddedKafka
from journal_client.leash import LeashedProcess, LeashedServer
from journal_client.throttle import Throttle
from journal_client.writer import JournalWriter

GROUP = "counters-up"

_QUICK = {
    # The embedded broker lets a rebalance wait for the session timeout less one second.
    "session.timeout.ms": 2_000,
    "heartbeat.interval.ms": 250,
    "topic.metadata.refresh.interval.ms": 1_000,
}

_HISTORY = {
    "url": None,
    "username": None,
    "password": None,
    "bearer_token": None,
    "sample_every": 5.0,
    "refresh_every": 10.0,
}
"""So that there is one to see within a minute. Whoever tries things out has no Prometheus of these counts."""

_START_TIMEOUT = 20.0


class System:
    """Everything, as a context manager. ``url`` is where the page is.

    Args:
        settings: what to count and how; addresses, group, what one worker alone can use (a port, an end), and
            source and pace of the history are replaced.
        object_types: topics to create before the workers start, so that they join once.
        data: directory for Redis's data and the logs; None: nothing is kept.
        workers: members of the consumer group.
    """

    def __init__(
        self, settings: Settings, object_types: Iterable[str], *, data: Path | None = None, workers: int = 2
    ) -> None:
        self._given = settings
        self._object_types = list(object_types)
        self._data = data
        self._workers = workers
        self._servers: dict[str, LeashedServer] = {}
        self._children: dict[str, tuple[LeashedProcess, Path]] = {}
        self._stack = ExitStack()
        self.settings = settings
        self.url = f"http://{settings.api.host}:{settings.api.port}/"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def writer(self) -> JournalWriter:
        """A writer that feeds the embedded broker no faster than the workers read: it holds only 5 MiB a
        partition."""
        throttle = self._stack.enter_context(Throttle(self.settings.journal.brokers, GROUP))
        return JournalWriter(self.settings.journal.brokers, self.settings.journal.prefix, throttle=throttle)

    def ended(self) -> str | None:
        """What ended although nobody asked it to, with its last words; None while all is well."""
        for name, server in self._servers.items():
            if not server.process.running:
                return f"{name} ended"
        for name, (process, log) in self._children.items():
            if not process.running:
                return f"{name} ended: {_last_line(log)}"
        return None

    def _start(self) -> None:
        home = self._home()
        kafka = self._stack.enter_context(EmbeddedKafka())
        redis = self._stack.enter_context(EmbeddedRedis(None if self._data is None else home / "redis"))
        self._servers = {"Kafka": kafka, "Redis": redis}
        journal = own_journal(self._given.journal, kafka.bootstrap_servers)
        store = self._given.redis.model_copy(update={"url": SecretStr(redis.url)})
        history = own_history(self._given.history)
        self.settings = self._given.model_copy(
            update={"journal": journal, "redis": store, "history": history}
        )
        config = self._write_settings(home)
        self._launch("server", ["serve"], config, home)
        self._create_topics()
        CounterStore(connect(store), store.prefix, GROUP).forget_positions()
        for number in range(1, self._workers + 1):
            self._launch(f"worker-{number}", ["count"], config, home)
        self._await_page()

    def _home(self) -> Path:
        if self._data is None:
            return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="counters-up-")))
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            lock = self._stack.enter_context((self._data / "lock").open("w"))
        except OSError as error:
            raise CountersError(f"cannot write to {self._data}: {error.strerror}; change --data") from error
        try:
            # Two servers would append to one file. The lock ends with this process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = f"{self._data} is in use by another counters up; end that one or change --data"
            raise CountersError(text) from error
        return self._data

    def _write_settings(self, home: Path) -> Path:
        content = self.settings.model_dump(exclude_none=True)
        path = home / "settings.yaml"
        path.touch(mode=0o600)  # there are secrets in it
        path.write_text(json.dumps(content, indent=2, default=_plain))  # JSON is YAML
        return path

    def _launch(self, name: str, command: list[str], config: Path, home: Path) -> None:
        log = home / f"{name}.log"
        # The settings file says it all; the variables behind it must not apply twice.
        plain = [f"-u{key}" for key in os.environ if key.startswith("COUNTERS_")]
        program = [sys.executable, "-m", "counters", "--config", str(config), *command]
        process = LeashedProcess(["env", *plain, *program], log=log)
        self._stack.callback(process.close)
        self._children[name] = (process, log)

    def _create_topics(self) -> None:
        # The embedded broker creates a topic when it is asked about.
        admin = AdminClient({"bootstrap.servers": self.settings.journal.brokers, "log_level": 0})
        for object_type in self._object_types:
            admin.list_topics(f"{self.settings.journal.prefix}.{object_type}", timeout=10)

    def _await_page(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not _answers(f"{self.url}healthz"):
            problem = self.ended()
            if problem is not None:
                raise CountersError(problem)
            if time.monotonic() > deadline:
                raise CountersError(f"the server at {self.url} did not answer within {_START_TIMEOUT:g} s")
            time.sleep(0.05)


def own_history(given: HistorySettings) -> HistorySettings:
    """``given``, from samples that are taken often; files that are named there are read and written."""
    return given.model_copy(update=_HISTORY)


def own_journal(given: JournalSettings, brokers: str) -> JournalSettings:
    """``given``, read from ``brokers`` by several workers that go on until they are told to end.

    They share one settings file: a port or a member's name in it would be taken by the first of them.
    """
    return given.model_copy(
        update={
            "brokers": brokers,
            "group_id": GROUP,
            "group_instance_id": None,
            "group_protocol": GroupProtocol.CLASSIC,
            "auto_offset_reset": OffsetReset.EARLIEST,
            "stop_at_end": False,
            "stop_after": None,
            "kafka": _QUICK,
            "batch": given.batch.model_copy(update={"max_seconds": 0.25}),
            "http": given.http.model_copy(update={"port": None}),
            "quarantine": given.quarantine.model_copy(update={"topic": None}),
        }
    )


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "no output"
