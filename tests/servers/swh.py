"""An environment with swh-counters in it, from PyPI. It is only run, as its own users run it.

``python tests/servers/swh.py`` makes it and prints its Python.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).parents[2] / ".swh-venv"
PACKAGES = ("swh-counters==0.14.0", "swh-journal")

_INSTALL = 300
"""Seconds that installing may take."""


class NotInstalled(Exception):
    """The package index cannot be reached, or has no such package; the message is pip's last line."""


def swh_python() -> Path:
    """The Python of the environment, which is made on first use.

    Raises:
        NotInstalled: it cannot be made here.
    """
    python, done = HOME / "bin" / "python", HOME / "installed"
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need it at once
        if not done.exists() or done.read_text() != repr(PACKAGES):
            venv.create(HOME, with_pip=True)
            _install(python)
            done.write_text(repr(PACKAGES))
    return python


def _install(python: Path) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    try:
        installed = subprocess.run(pip, capture_output=True, text=True, timeout=_INSTALL)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took more than {_INSTALL} s") from None
    if installed.returncode:
        raise NotInstalled((installed.stderr.strip().splitlines() or ["pip failed"])[-1])


if __name__ == "__main__":
    try:
        print(swh_python())
    except NotInstalled as error:
        sys.exit(f"swh-counters cannot be installed: {error}")
