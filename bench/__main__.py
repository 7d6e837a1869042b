"""``python -m bench``: see README.md beside this file. ``make bench`` starts the broker as well."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from bench.parts import ON_KAFKA, PARTS, Bench
from bench.table import save, show
from counters.embedded import EmbeddedRedis
from counters.errors import CountersError, InputError


def main() -> int:
    options = _options()
    brokers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
    try:
        if not brokers and set(options.only) & set(ON_KAFKA):
            raise InputError("no broker to read from: run make bench, or set KAFKA_BOOTSTRAP_SERVERS")
        with _empty_redis() as redis_url:
            bench = Bench(brokers, redis_url, options.rounds, _say)
            rows = [row for part in options.only for row in PARTS[part](bench)]
    except CountersError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    show(rows)
    _say(f"written to {save(rows, bench.details)}")
    return 1 if any(row.missed for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare, measure, print one table.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--rounds", type=int, default=5, help="times each contender runs (default 5)")
    return parser.parse_args()


@contextmanager
def _empty_redis() -> Iterator[str]:
    """``REDIS_URL``, or a server that ends with this process. It is emptied before every run."""
    url = os.environ.get("REDIS_URL") or None
    if url is None:
        with EmbeddedRedis() as server:
            yield server.url
        return
    with redis.Redis.from_url(url) as client:
        if held := client.dbsize():
            raise InputError(
                f"REDIS_URL holds {held} keys, and the bench empties it: give it a Redis of its own"
            )
    yield url


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
