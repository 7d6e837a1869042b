"""A Prometheus of its own for a test, on a free port of 127.0.0.1, with samples of the past in it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal_client.leash import LeashedProcess
from journal_client.pytest_plugin import wait_for

Sample = tuple[str, int, float]
"""A series as Prometheus writes it (name and labels), Unix seconds, value."""


def require_prometheus() -> None:
    """Skip the test where Prometheus is not installed; in CI it has to be."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return
    if os.environ.get("CI"):
        pytest.fail("prometheus and promtool are not on PATH")
    pytest.skip("prometheus and promtool are not on PATH (Debian's package prometheus)")


def backfill(data: Path, samples: Iterable[Sample]) -> None:
    """Put samples into the data directory of a Prometheus that does not run."""
    ordered = sorted(samples, key=lambda sample: (sample[0].partition("{")[0], sample[1]))
    names = dict.fromkeys(series.partition("{")[0] for series, _, _ in ordered)
    lines = []
    for name in names:
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{series} {value} {at}" for series, at, value in ordered if series.startswith(name)]
    text = data.with_suffix(".txt")
    text.write_text("\n".join([*lines, "# EOF\n"]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def prometheus(data: Path, *, retention: str = "100y", scrape: str | None = None) -> Iterator[str]:
    """Its URL. ``scrape``: address that it scrapes every second."""
    targets = [] if scrape is None else [{"targets": [scrape]}]
    jobs = [{"job_name": "counters", "static_configs": targets}]
    config = data.with_suffix(".yaml")
    content = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    config.write_text(json.dumps(content))  # JSON is YAML
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}"]
    command += [f"--web.listen-address={address}", f"--storage.tsdb.retention.time={retention}"]
    process = LeashedProcess(command, log=data.with_suffix(".log"))
    try:
        wait_for(lambda: _ready(f"http://{address}/-/ready"), message="Prometheus does not start")
        yield f"http://{address}"
    finally:
        process.close()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
