"""Runs ``promtool``, which Prometheus brings along, for the tests of metrics, dashboards and alerts."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need(program: str) -> str:
    """The path of ``program``; skips the test where it is not installed, but fails it in CI."""
    found = shutil.which(program)
    if found is None:
        reason = f"{program} is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """What ``promtool`` says to ``arguments`` with ``text`` on its standard input."""
    command = [need("promtool"), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
