"""A PostgreSQL of its own for the tests, on a free port of 127.0.0.1, with nothing in it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg
import pytest

from journal_client.leash import LeashedProcess, LeashedServer
from journal_client.pytest_plugin import wait_for

PROGRAMS = ("initdb", "postgres")

USER = "postgres"
"""Its superuser; and who owns its process where the tests run as root, which it refuses to run as."""

# A crash of the machine may lose the data: there are none to keep.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "timezone": "UTC",
}


def require_postgresql() -> dict[str, Path]:
    """Where its programs are. Skips the test where they are not; in CI they have to be."""
    folders = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    missing = [name for name, program in found.items() if program is None]
    if os.getuid() == 0:
        missing += [] if shutil.which("setpriv") and _owner() else [f"setpriv with a user {USER}"]
    if missing:
        reason = f"{' and '.join(missing)} not found (Debian's package postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return {name: Path(program) for name, program in found.items() if program is not None}


class Postgresql(LeashedServer):
    """A server whose data end with it."""

    def __init__(self, programs: dict[str, Path]) -> None:
        super().__init__()
        self._programs = programs
        self._port = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> Self:
        """Create its data, start it and wait until it answers."""
        self._folder = tempfile.TemporaryDirectory(prefix="counters-postgresql-")
        folder = Path(self._folder.name)
        if owner := _owner():
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        command = [*_as_user(), self._programs["initdb"], "--no-sync", "--no-instructions", "--auth=trust"]
        command += [f"--username={USER}", "--encoding=UTF8", "--locale=C", "-D", folder / "data"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._launch()
        return self

    @property
    def port(self) -> int:
        """Its port; the same after :meth:`restart`."""
        return self._port

    @property
    def url(self) -> str:
        """Of the database that every server has."""
        return f"postgresql://{USER}@127.0.0.1:{self._port}/postgres"

    def restart(self) -> None:
        """End it as a crash would, and start it again with its data."""
        self._end()
        self._launch()

    def empty(self) -> None:
        """Drop everything that is in it, and every session."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
            wait_for(lambda: connection.execute(f"SELECT count(*) {others}").fetchone() == (0,))
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def close(self) -> None:
        """End it and remove its data."""
        if self._process is not None:
            self._end()
        super().close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def _launch(self) -> None:
        assert self._folder is not None
        folder = Path(self._folder.name)
        command = [*_as_user(), str(self._programs["postgres"]), "-D", str(folder / "data")]
        command += [part for key, value in SETTINGS.items() for part in ("-c", f"{key}={value}")]
        log = folder / "log"
        self._process = LeashedProcess([*command, "-p", str(self._port)], log=log)
        wait_for(self._answers, message=f"PostgreSQL does not start, see {log}")

    def _end(self) -> None:
        self.process.signal(signal.SIGQUIT)  # at once: what it asks the sessions for, they need not finish
        wait_for(lambda: not self.process.running, message="PostgreSQL does not end")
        self.process.close()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


def _owner() -> pwd.struct_passwd | None:
    """Who the server runs as; None: whoever runs the tests."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


def _as_user() -> list[str]:
    owner = _owner()
    if owner is None:
        return []
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
