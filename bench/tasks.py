"""The long tasks: what a checkpoint costs, and how fast and how greedy backfill, rebuild and verify are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import redis
from confluent_kafka import Producer

from bench.race import Contender, Race, run_contender
from bench.table import Row, Target
from bench.topics import Topics, empty_topics
from counters.checkpoints.model import Advance
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import ObjectsSettings
from counters.errors import CountersError
from counters.objects.bulk import BulkWriter
from counters.objects.derived import Derived
from counters.objects.extraction import Extraction
from counters.objects.store import CounterStore

Say = Callable[[str], None]

RATE, SHARE, MEMORY = "{:,.0f} keys/s", "{:.1%}", "{:.0f} MiB"

KEY = 20
FLUSH_KEYS = 100_000
"""Keys of a flush: a full batch of the journal."""

FLUSHES = 60
DUMP_KEYS = 5_000_000
REBUILD_RECORDS = 6_000_000
VERIFY_RECORDS = 50_000_000
DISTINCT = 0.6
"""Share of the records of verify whose keys are different."""


def checkpoint(redis_url: str, say: Say) -> Iterator[Row]:
    """What the write of a checkpoint adds to the flush it is a part of."""
    say("checkpoint: flushes with and without")
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        plain, marked = [_Flushes(client, name) for name in ("plain", "marked")]
        rng = np.random.default_rng(3)
        for number in range(FLUSHES):
            keys = _cut(rng.bytes(KEY * FLUSH_KEYS))
            plain.flush(keys, None)
            cursor = {"range": {f"bench.key:{n}": [0, number, 10**9] for n in range(8)}}
            marked.flush(keys, Advance("bench:flush", cursor, {"ok": number}, runner="bench", ok=FLUSH_KEYS))
    added = median(b - a for a, b in zip(plain.seconds, marked.seconds, strict=True))
    yield Row("checkpoint", f"flush of {FLUSH_KEYS:,} keys", 1e3 * median(plain.seconds), "{:.2f} ms")
    yield Row("checkpoint", "    added by a checkpoint", 1e6 * added, "{:.0f} µs")
    share = added / median(plain.seconds)
    yield Row("checkpoint", "    share of the flush", share, SHARE, Target(0.05, at_least=False))


class _Flushes:
    """One counter, fed through a bulk writer, with a stopwatch."""

    def __init__(self, client: redis.Redis, counter: str) -> None:
        store = CounterStore(client, "bench", "bench")
        settings = ObjectsSettings(derived={})
        self._writer = BulkWriter(store, settings, Extraction(Derived.from_config({}), "bench"))
        self._counter = counter
        self.seconds: list[float] = []

    def flush(self, keys: list[bytes], advance: Advance | None) -> None:
        began = time.perf_counter()
        self._writer.add({self._counter: keys}, advance)
        self.seconds.append(time.perf_counter() - began)


def backfill(redis_url: str, rounds: int, say: Say) -> Iterator[Row]:
    """A dump of hexadecimal lines, through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "keys.hex"
        rng = np.random.default_rng(4)
        with dump.open("wb") as file:
            for _ in range(DUMP_KEYS // FLUSH_KEYS):
                file.writelines(key.hex().encode() + b"\n" for key in _cut(rng.bytes(KEY * FLUSH_KEYS)))
        rates, walls = [], []
        for number in range(rounds):
            with redis.Redis.from_url(redis_url) as client:
                client.flushdb()
            began = time.perf_counter()
            lines = _counters(
                {"redis": {"url": redis_url}}, "backfill", "key", "--create", "--from", str(dump)
            )
            walls.append(time.perf_counter() - began)
            rates.append(_rate(lines))
            say(f"round {number + 1}/{rounds}  backfill {rates[-1]:>12,.0f} keys/s")
    yield Row("backfill", f"{DUMP_KEYS:,} keys in hexadecimal", median(rates), RATE, Target(1_000_000))
    yield Row("backfill", "    whole process", median(walls), "{:.1f} s")


def rebuild(brokers: str, redis_url: str, rounds: int, say: Say) -> Iterator[Row]:
    """A worker with a backlog, alone and beside a rebuild of the counter it feeds."""
    alone = Contender("counters count", "counters")
    beside = Contender("    beside a rebuild", "counters")
    race = Race([alone, beside])
    recounted: list[int] = []
    with _keys_in_kafka(brokers, REBUILD_RECORDS, say) as topics:
        for number in range(rounds):
            for contender in (alone, beside):
                with redis.Redis.from_url(redis_url) as client:
                    client.flushdb()
                if contender is alone:
                    run = run_contender(contender, topics, redis_url)
                else:
                    with _rebuilding(topics, redis_url):
                        run = run_contender(contender, topics, redis_url, flush=False)
                    recounted.append(_recounted(redis_url))
                race.runs[contender.label].append(run)
                say(f"round {number + 1}/{rounds}  {contender.label:<24}{run.rate:>12,.0f} messages/s")
    for label in race.runs:
        yield Row("rebuild", label, race.rate(label), "{:,.0f} messages/s")
    yield Row("rebuild", "    records recounted meanwhile", median(recounted), "{:,.0f}")
    slowed = 1 - race.ratio(beside.label, alone.label)
    yield Row("rebuild", "    slows the worker by", slowed, SHARE, Target(0.20, at_least=False))


@contextmanager
def _rebuilding(topics: Topics, redis_url: str) -> Iterator[None]:
    """A rebuild that goes on, again and again, from before the block to its end."""
    settings = _settings(topics, redis_url)
    with redis.Redis.from_url(redis_url) as client:
        store = CounterStore(client, "counters", "bench")
        store.register(store.new_spec("key", ObjectsSettings(derived={})))
    over = threading.Event()
    first = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def go() -> None:
        while not over.is_set():
            process = _start(settings, "rebuild", "key", "--precision", "18", "--allow-fall")
            running[:] = [process]
            first.set()
            process.wait()

    thread = threading.Thread(target=go)
    thread.start()
    first.wait()
    with redis.Redis.from_url(redis_url) as client:
        while not client.hlen("{counters}:checkpoints"):  # until it has begun
            time.sleep(0.01)
    try:
        yield
    finally:
        over.set()
        running[0].kill()
        thread.join()


def _recounted(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as client:
        row = RedisCheckpoints(client, "counters").get("rebuild:key")
    return 0 if row is None else row.items["ok"]


def verify(brokers: str, redis_url: str, say: Say) -> Iterator[Row]:
    """A topic recounted exactly, through the command line."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    with _keys_in_kafka(brokers, VERIFY_RECORDS, say) as topics, tempfile.TemporaryDirectory() as folder:
        settings = _settings(topics, redis_url)
        say("verify: counting")
        _counters(settings, "count", "--stop-at-end")
        say("verify: recounting")
        began = time.perf_counter()
        process = _start(settings, "verify", "key", "--spool", folder)
        out = process.stdout.read().decode() if process.stdout is not None else ""
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if os.waitstatus_to_exitcode(status):
            raise CountersError(f"counters verify ended with {os.waitstatus_to_exitcode(status)}: {out}")
    yield Row("verify", f"{VERIFY_RECORDS:,} records", VERIFY_RECORDS / seconds, RATE)
    exact = re.search(r"exact +([\d,]+)", out)
    yield Row("verify", "    different keys", float(exact[1].replace(",", "")) if exact else 0, "{:,.0f}")
    yield Row("verify", "    peak memory", usage.ru_maxrss / 1024, MEMORY, Target(512, at_least=False))


@contextmanager
def _keys_in_kafka(brokers: str, records: int, say: Say) -> Iterator[Topics]:
    """A topic of keys without values, about ``DISTINCT`` of them different."""
    rng = np.random.default_rng(5)
    pool = max(1, int(records * DISTINCT))
    with empty_topics(brokers, ("key",)) as topics:
        say(f"writing {records:,} records")
        producer = Producer(
            {"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
        )
        written = 0
        while written < records:
            size = min(FLUSH_KEYS, records - written)
            numbers = rng.integers(0, pool, size, dtype=np.uint64)
            keys = _cut(
                np.stack([numbers * np.uint64(0x9E3779B97F4A7C15), numbers, numbers], 1).tobytes(), 24
            )
            producer.produce_batch(f"{topics.prefix}.key", [{"key": key} for key in keys])
            while len(producer) > 1_000_000:
                producer.poll(0.1)
            written += size
        producer.flush()
        yield Topics(brokers, topics.prefix, topics.types, records)


def _settings(topics: Topics, redis_url: str) -> dict[str, object]:
    journal = {"brokers": topics.brokers, "prefix": topics.prefix, "group_id": "bench"}
    return {"journal": journal, "redis": {"url": redis_url}, "objects": {"derived": {}}}


def _start(settings: dict[str, object], *arguments: str) -> subprocess.Popen[bytes]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        json.dump(settings, file)  # JSON is YAML
    command = [sys.executable, "-m", "counters", "--config", file.name, "--log-level", "error", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _counters(settings: dict[str, object], *arguments: str) -> list[str]:
    """Lines on standard error of a command that must succeed."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(settings, file)
        file.flush()
        command = [
            sys.executable,
            "-m",
            "counters",
            "--config",
            file.name,
            "--log-level",
            "error",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CountersError(f"counters {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return done.stderr.splitlines()


def _rate(lines: list[str]) -> float:
    """The last rate that a task told."""
    for line in reversed(lines):
        if found := re.search(r"([\d,]+)/s", line):
            return float(found[1].replace(",", ""))
    raise CountersError("the task told no rate")


def _cut(data: bytes, width: int = KEY) -> list[bytes]:
    keys: list[bytes] = np.frombuffer(data, f"V{width}").tolist()
    return keys
