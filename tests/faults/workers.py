"""Worker processes, and what a test may do to them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from journal_client.pytest_plugin import wait_for

PROCESS = Path(__file__).with_name("worker_process.py")


@dataclass(frozen=True, slots=True)
class Books:
    """The ledger of a worker at its end.

    Attributes:
        topics: per topic, records polled, handled, ``skipped.<reason>`` and ``dropped.<reason>``.
        imbalance: topics whose records are not all accounted for.
    """

    topics: dict[str, dict[str, int]]
    imbalance: dict[str, int]

    def total(self, entry: str) -> int:
        """The sum of one entry over all topics."""
        return sum(topic.get(entry, 0) for topic in self.topics.values())


class Worker:
    """A running ``worker_process.py``."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir()
        self._log = folder / "log"
        self._books = folder / "books"
        (folder / "settings.json").write_text(json.dumps(settings))
        with self._log.open("wb") as log, self._books.open("wb") as books:
            self._process = subprocess.Popen(
                [sys.executable, str(PROCESS), str(folder / "settings.json")],
                stdin=subprocess.PIPE,
                stdout=books,
                stderr=log,
                text=True,
            )

    @property
    def log(self) -> str:
        """Everything the worker said so far."""
        return self._log.read_text(errors="replace")

    def expect(self, words: str, timeout: float = 30.0) -> None:
        """Wait until the worker said ``words`` (in its log)."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: words in self.log or self._process.poll() is not None, timeout)
        assert words in self.log, f"the worker did not say {words!r}:\n{self.log}"

    def expect_frozen(self) -> None:
        """Wait until the worker is stopped by a signal."""
        process = psutil.Process(self._process.pid)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, message="the worker was not frozen")

    def expect_death(self, timeout: float = 20.0) -> None:
        """Wait until the worker was killed."""
        assert self._process.wait(timeout) == -signal.SIGKILL, self.log

    def freeze(self) -> None:
        """Stop the process where it is."""
        self._process.send_signal(signal.SIGSTOP)
        self.expect_frozen()

    def wake(self) -> None:
        """Let a frozen process go on."""
        self._process.send_signal(signal.SIGCONT)

    def release(self) -> None:
        """Let a worker on hold go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self, timeout: float = 20.0) -> Books:
        """End the worker in an orderly way. Its books must add up."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(timeout) == 0, self.log
        books = Books(**json.loads(self._books.read_text()))
        assert books.imbalance == {}, books.topics
        return books

    def destroy(self) -> None:
        """End the worker, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


StartWorker = Callable[..., Worker]
"""What the fixture ``start_worker`` is."""
