"""Readers of one journal against each other: A B C A B C …, on one broker and one Redis."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

import redis

from bench.topics import Topics
from counters.errors import CountersError

HERE = Path(__file__).parent
RIVAL_HOME = HERE / ".venv"
RIVAL = ("swh-counters==0.14.0", "swh-journal")
"""Installed from PyPI into an environment of its own, and only run."""

LIMIT = 600
"""Seconds a contender may take."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One reader with its settings. ``kind`` is one of ``contender.CONTENDERS``."""

    label: str
    kind: str
    precision: int = 18
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What one contender did in one round.

    Attributes:
        rate: records per second between the first and the last record.
        cpu: microseconds per record on a processor, all threads; other load disturbs it less.
        wall: seconds of the whole process.
        peak_mib: most memory resident at any time, in MiB.
    """

    rate: float
    cpu: float
    wall: float
    peak_mib: float


class Race:
    """The runs of every contender, round by round."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self.runs: dict[str, list[Run]] = {contender.label: [] for contender in contenders}
        self._contenders = contenders

    def run(self, topics: Topics, redis_url: str, rounds: int, progress: Callable[[str], None]) -> None:
        """Let each contender read all topics in turn, ``rounds`` times, each time into an empty Redis."""
        run_contender(
            self._contenders[0], topics, redis_url
        )  # nobody has to wait for a broker that just woke up
        for number in range(rounds):
            for contender in self._contenders:
                run = run_contender(contender, topics, redis_url)
                self.runs[contender.label].append(run)
                progress(f"round {number + 1}/{rounds}  {contender.label:<34}{run.rate:>12,.0f} messages/s")

    def rate(self, label: str) -> float:
        """Median messages per second."""
        return median(run.rate for run in self.runs[label])

    def cpu(self, label: str) -> float:
        """Median microseconds of processor time per message."""
        return median(run.cpu for run in self.runs[label])

    def wall(self, label: str) -> float:
        """Median seconds of the whole process."""
        return median(run.wall for run in self.runs[label])

    def peak_mib(self, label: str) -> float:
        """The most memory of all rounds: a limit has to hold always."""
        return max(run.peak_mib for run in self.runs[label])

    def ratio(self, label: str, other: str) -> float:
        """Median of the ratios of two rates that were measured one after the other, in the same round."""
        pairs = zip(self.runs[label], self.runs[other], strict=True)
        return median(run.rate / base.rate for run, base in pairs)


def install_rival() -> None:
    """Make the environment of swh-counters, once.

    Raises:
        CountersError: pip cannot install it.
    """
    if not (RIVAL_HOME / "installed").exists():
        venv.create(RIVAL_HOME, with_pip=True, clear=True)
        python = RIVAL_HOME / "bin" / "python"
        if subprocess.call([python, "-m", "pip", "install", "--quiet", *RIVAL]):
            raise CountersError(f"pip cannot install {' '.join(RIVAL)}; its reason stands above")
        (RIVAL_HOME / "installed").touch()


def run_contender(contender: Contender, topics: Topics, redis_url: str, *, flush: bool = True) -> Run:
    """Let one contender read all topics, into an empty Redis unless told not to ``flush`` it."""
    if flush:
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
    job = {
        "brokers": topics.brokers,
        "prefix": topics.prefix,
        "types": topics.types,
        "records": topics.records,
        "group": f"bench-{uuid4().hex}",  # has read nothing yet
        "redis": redis_url,
        "precision": contender.precision,
        "batch": contender.batch,
    }
    python = str(RIVAL_HOME / "bin" / "python") if contender.kind == "swh-counters" else sys.executable
    command = [python, str(HERE / "contender.py"), contender.kind, json.dumps(job)]
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT)
    wall = time.perf_counter() - started
    if done.returncode:
        raise CountersError(
            f"{contender.label} ended with exit code {done.returncode}; its reason stands above"
        )
    result = json.loads(done.stdout.splitlines()[-1])
    if result["records"] < topics.records:  # more than all: some came twice, which is no merit
        raise CountersError(f"{contender.label} read {result['records']} of {topics.records} records")
    return Run(
        rate=topics.records / result["seconds"],
        cpu=result["cpu"] / topics.records * 1e6,
        wall=wall,
        peak_mib=result["peak_kib"] / 1024,
    )
