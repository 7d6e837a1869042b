"""Servers of the counts against each other: the same Redis, the same load, in turns.

The load is ``wrk`` with 64 connections. swh-counters runs as in production: gunicorn, 2 workers of 2 threads.
Ours has 2 processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import numpy as np
import redis

from bench.race import RIVAL_HOME, install_rival
from bench.table import Row, Target
from counters.errors import CountersError, InputError
from counters.history.series import Series
from counters.history.store import HistoryStore

TYPES = (
    "origin", "revision", "content", "directory", "release", "person", "snapshot", "skipped_content",
    "origin_visit",
)  # fmt: skip
"""The nine that swh-web asks for."""

CONNECTIONS, SECONDS = 64, 5
FOLLOWERS = 1_000
KEYS = 20_000
QUESTION = json.dumps({"collections": TYPES})
POST = f"""\
wrk.method = "POST"
wrk.body = '{QUESTION}'
wrk.headers["Content-Type"] = "application/json"
"""
RATE, MILLISECONDS, TIMES, KIB = "{:,.0f} requests/s", "{:.1f} ms", "{:.2f} ×", "{:.0f} KiB"
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Load:
    """What one server answered in one round: requests per second, and the slowest per cent in ms."""

    rate: float
    p99: float


def rows(redis_url: str, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rates and latencies, what followers of the stream cost, and a long history."""
    if shutil.which("wrk") is None:
        raise InputError("wrk makes the load: install it (Debian: apt-get install wrk)")
    install_rival()
    with redis.Redis.from_url(redis_url) as client, tempfile.TemporaryDirectory() as scratch:
        client.flushdb()
        for kind in TYPES:
            client.execute_command("PFADD", kind, *(f"{kind}-{n}" for n in range(KEYS)))
        with _rival(redis_url, Path(scratch)) as rival, _ours(redis_url) as ours:
            contenders = {
                "swh-counters, POST /counts": lambda: _load(f"{rival}counts", scratch, post=True),
                "GET /api/v1/counts": lambda: _load(f"{ours}api/v1/counts", scratch),
                "POST /counts": lambda: _load(f"{ours}counts", scratch, post=True),
            }
            loads: dict[str, list[Load]] = {label: [] for label in contenders}
            for number in range(rounds):
                for label, run in contenders.items():
                    loads[label].append(load := run())
                    say(f"round {number + 1}/{rounds}  {label:<34}{load.rate:>12,.0f} requests/s")
            yield from _compared(loads)
            say("api: following the stream")
            yield _followers(client, ours)
        yield from _history(client, redis_url, say)


def _compared(loads: Mapping[str, list[Load]]) -> Iterator[Row]:
    for label, runs in loads.items():
        yield Row("api", label, median(run.rate for run in runs), RATE)
        yield Row("api", f"    99 % answered within, {label}", median(run.p99 for run in runs), MILLISECONDS)
    rival, get, post = loads.values()
    pairs = list(zip(get, rival, strict=True))
    yield Row("api", "GET / swh-counters", median(a.rate / b.rate for a, b in pairs), TIMES, Target(12))
    slowest = median(a.p99 / b.p99 for a, b in pairs)
    yield Row("api", "    its 99 %", slowest, TIMES, Target(0.2, at_least=False))
    pairs = list(zip(post, rival, strict=True))
    yield Row("api", "POST / swh-counters", median(a.rate / b.rate for a, b in pairs), TIMES, Target(6))


def _followers(client: redis.Redis, address: str) -> Row:
    """What Redis does per second for many followers, against one."""
    one, many = (asyncio.run(_follow(client, address, number)) for number in (1, FOLLOWERS))
    return Row(
        "api", f"Redis commands, {FOLLOWERS:,} followers / 1", many / one, TIMES, Target(1.1, at_least=False)
    )


async def _follow(client: redis.Redis, address: str, number: int) -> float:
    place = address.removeprefix("http://").rstrip("/").split(":")
    writers = []
    for _ in range(number):
        reader, writer = await asyncio.open_connection(*place)
        writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: bench\r\n\r\n")
        await reader.readuntil(b"event: counts")
        writers.append(writer)
    client.config_resetstat()
    await asyncio.sleep(SECONDS)
    calls = sum(one["calls"] for one in client.info("commandstats").values())
    for writer in writers:
        writer.close()
    return calls / SECONDS


def _history(client: redis.Redis, redis_url: str, say: Callable[[str], None]) -> Iterator[Row]:
    """Twenty years of ten types at twelve hours, as the API answers it by default and not yet asked for."""
    say("api: history")
    times = np.arange(0, 20 * 365 * DAY, DAY // 2)
    growth = np.random.default_rng(1).gamma(0.5, 2e6, (10, len(times))).cumsum(axis=1)
    store = HistoryStore(client, "counters")
    with store.claim() as claim:
        store.write(
            "default", claim, {f"type-{n}": Series(times, values) for n, values in enumerate(growth)}, DAY
        )
    took, size = [], 0
    with _ours(redis_url, processes=1) as ours:
        for points in range(1_000, 980, -1):
            ask = Request(f"{ours}api/v1/history?max_points={points}", headers={"Accept-Encoding": "gzip"})
            began = time.perf_counter()
            with urlopen(ask, timeout=10) as answer:
                size = max(size, len(answer.read()))
            took.append(1_000 * (time.perf_counter() - began))
    what = "history, 20 years at 12 h, 10 types"
    yield Row("api", what, median(took), MILLISECONDS, Target(50, at_least=False))
    yield Row("api", "    compressed", size / 1024, KIB, Target(200, at_least=False))


def _load(address: str, scratch: str, *, post: bool = False) -> Load:
    script = Path(scratch) / "post.lua"
    script.write_text(POST)
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--latency", address]
    command += ["-s", str(script)] if post else []
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said:
        raise CountersError(f"{address} answers with errors: {said}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", said)
    if rate is None or p99 is None:
        raise CountersError(f"wrk says nothing of {address}: {said}")
    return Load(float(rate[1]), float(p99[1]) * {"us": 0.001, "ms": 1.0, "s": 1_000.0}[p99[2]])


def _ours(redis_url: str, processes: int = 2) -> AbstractContextManager[str]:
    command = [sys.executable, "-m", "counters", "--log-level", "error", "serve"]
    environment = {"COUNTERS_REDIS__URL": redis_url, "COUNTERS_OBJECTS__LAYOUT": "legacy"}
    return _server([*command, "--processes", str(processes), "--port"], "", environment)


def _rival(redis_url: str, scratch: Path) -> AbstractContextManager[str]:
    config = scratch / "swh.json"
    place = redis_url.partition("://")[2].partition("/")[0]
    config.write_text(json.dumps({"counters": {"cls": "redis", "host": place}}))  # JSON is YAML
    program = [
        str(RIVAL_HOME / "bin" / "gunicorn"),
        "--workers",
        "2",
        "--threads",
        "2",
        "--log-level",
        "error",
    ]
    application = "swh.counters.api.server:make_app_from_configfile()"
    environment = {"SWH_CONFIG_FILENAME": str(config)}
    return _server([*program, application, "--bind"], "127.0.0.1:", environment)


@contextmanager
def _server(command: list[str], before_port: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The address of a server that gets its port as the last argument."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    with subprocess.Popen(
        [*command, f"{before_port}{port}"], env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    ) as process:
        try:
            _await(f"{address}counts", process)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers with all numbers."""
    ask = Request(address, QUESTION.encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(ask, timeout=5) as answer:
                if len(json.load(answer)) == len(TYPES):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise CountersError(f"{address} does not answer")
