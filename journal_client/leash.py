"""A server as a child process that never outlives its parent, not even one killed by SIGKILL.

Between parent and server sits a tiny supervisor (this file, run as a script). It reads a pipe that only the
parent holds open: end of file means that the parent closed it or died, in whatever way, and the supervisor
ends the server. Unlike a server that watches its own standard input this also works for foreign programs and
for a server that is frozen. Should the supervisor itself be killed, Linux ends the server
(``PR_SET_PDEATHSIG``); the supervisor starts it from its main thread because that signal follows the thread,
not the process.

Only the standard library is imported: the supervisor starts in isolated mode within milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

GRACE = 5.0
"""Seconds a server has between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1


class LeashedProcess:
    """A running server. Sessions of their own keep Ctrl-C in a terminal away from it: the parent decides.

    Args:
        command: program and arguments.
        log: file that receives the server's output (appended). None: its standard output is read with
            :meth:`read_line` and its errors go to the parent's.
        grace: seconds between SIGTERM and SIGKILL when the server is closed.
    """

    def __init__(self, command: Sequence[str], *, log: Path | None = None, grace: float = GRACE) -> None:
        self._grace = grace
        mode = "pipe" if log is None else "log"
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("ab")) if log is not None else None
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", __file__, mode, str(grace), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        line = self.read_line(timeout=30.0)
        if not line.isdigit():
            self.close()
            raise OSError(f"cannot start {command[0]}: {line or 'no reason given'}")
        self.pid = int(line)

    @property
    def running(self) -> bool:
        """Whether the server still runs (a paused one does)."""
        return self._supervisor.poll() is None

    def read_line(self, timeout: float) -> str:
        """The next line of the server's standard output; empty if it ended or ``timeout`` seconds passed."""
        output = _pipe(self._supervisor.stdout)
        deadline = time.monotonic() + timeout
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                byte = os.read(output.fileno(), 1)
                if byte in (b"", b"\n"):
                    break
                line += byte
        return line.decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        """Send a signal to the server; nothing if it ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Freeze the server: connections stay open and are not answered."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the server, also a frozen one: SIGTERM, then SIGKILL if it takes long. Waits for the end."""
        _pipe(self._supervisor.stdin).close()
        self._supervisor.wait(timeout=self._grace + 10.0)
        _pipe(self._supervisor.stdout).close()


class LeashedServer(ABC):
    """A server for tests and demonstrations: what can be done to its process, whatever it serves.

    Used as a context manager, or with :meth:`start` and :meth:`close`.
    """

    def __init__(self) -> None:
        self._process: LeashedProcess | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start the server and wait until it answers."""

    @property
    def process(self) -> LeashedProcess:
        """The running process.

        Raises:
            RuntimeError: it was not started.
        """
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} is not running: call start() first")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    def kill(self) -> None:
        """End the server as a crash would."""
        self.process.kill()

    def pause(self) -> None:
        """Freeze the server: connections stay open and are not answered."""
        self.process.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self.process.resume()

    def close(self) -> None:
        """End the server. Closing twice does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the process was started without this pipe")
    return stream


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does between fork and exec so that Linux ends it with its parent; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _end(server: subprocess.Popen[bytes], grace: float) -> None:
    server.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGCONT)  # a frozen process takes no other signal
    try:
        server.wait(timeout=grace)
    except subprocess.TimeoutExpired:
        server.kill()


def _supervise(mode: str, grace: float, command: Sequence[str]) -> int:
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if mode == "log" else None,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 (no thread runs yet)
        )
    except OSError as error:
        print(error.strerror, flush=True)
        return 1
    print(server.pid, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())

    def end_at_eof() -> None:
        os.read(0, 1)  # not sys.stdin: its lock, held by this thread, would disturb the exit
        _end(server, grace)

    threading.Thread(target=end_at_eof, daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
