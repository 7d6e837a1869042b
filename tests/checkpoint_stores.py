"""The stores of checkpoints, each on its real server, and what a test does to them behind their backs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from sqlalchemy import JSON, Engine, delete, func, insert, literal, select, update

from counters import redis, sql
from counters.checkpoints.model import Advance
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.sql_store import SqlCheckpoints, create_schema
from counters.checkpoints.sql_tables import CHECKPOINTS, METADATA
from counters.checkpoints.store import Checkpoints
from counters.config import RedisSettings

KINDS = ("redis", "sqlite", "postgresql")
PREFIX = "counters"
KEY = f"{{{PREFIX}}}:checkpoints"

NAME = "rollup:month"
CURSOR = {"day": "2026-03-01", "row": 7}
COUNTS = {"examined": 10, "failed": 1}

READS: dict[str, Callable[[Checkpoints, str], object]] = {
    "get": lambda store, name: store.get(name),
    "paused": lambda store, name: store.paused(name),
    "holder": lambda store, name: store.holder(name),
}
WRITES: dict[str, Callable[[Checkpoints, str], object]] = {
    "put": lambda store, name: store.put(name, CURSOR, COUNTS, "running"),
    "advance": lambda store, name: store.advance(name, CURSOR, COUNTS),
    "apply": lambda store, name: store.apply(Advance(name, CURSOR, COUNTS)),
    "update": lambda store, name: store.update(name, state="active"),
    "heartbeat": lambda store, name: store.heartbeat(name),
    "delete": lambda store, name: store.delete(name),
    "pause": lambda store, name: store.pause(name),
    "resume": lambda store, name: store.resume(name),
    "claim": lambda store, name: store.claim(name),
}
EVERY = READS | WRITES
"""Every function of a store that takes a name, called with it."""

Row = dict[str, Any]
"""A row as it is stored: moments in microseconds, cursor and counts as JSON text."""


@dataclass
class RedisPlace:
    """A Redis database."""

    url: str
    kind: str = "redis"
    _clients: list[Any] = field(default_factory=list)

    def open(self, url: str | None = None) -> RedisCheckpoints:
        """The store through a client of its own."""
        client = redis.connect(RedisSettings(url=url or self.url, timeout=5.0))  # type: ignore[arg-type]
        self._clients.append(client)
        return RedisCheckpoints(client, PREFIX)

    def through(self, port: int) -> str:
        """The address of the same database behind another port."""
        return f"redis://127.0.0.1:{port}/{self.url.rpartition('/')[2]}"

    @property
    def port(self) -> int:
        """Where the server listens."""
        return int(self.url.rpartition(":")[2].partition("/")[0])

    def read(self, name: str) -> Row | None:
        """The stored row."""
        with Redis.from_url(self.url) as client:
            stored = client.hget(KEY, name)
        return None if stored is None else json.loads(stored)

    def change(self, name: str, **fields: Any) -> None:
        """Overwrite fields of a stored row."""
        row = {**(self.read(name) or {}), **{key: str(value) for key, value in fields.items()}}
        with Redis.from_url(self.url) as client:
            client.hset(KEY, name, json.dumps(row))

    def fill(self, names: list[str], cursor: str, counts: str) -> None:
        """Write one row per name."""
        row = json.dumps({"updated_at": "1", "cursor": cursor, "counts": counts})
        with Redis.from_url(self.url) as client:
            client.hset(KEY, mapping=dict.fromkeys(names, row))

    def remove(self) -> None:
        """Remove everything."""
        with Redis.from_url(self.url) as client:
            client.flushdb()

    def close(self) -> None:
        """End every client that was opened here."""
        for client in self._clients:
            client.close()


@dataclass
class SqlPlace:
    """A database with the tables of checkpoints in it."""

    url: str
    kind: str
    _engines: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = self._engine(self.url)
        create_schema(self.engine)
        with self.engine.begin() as connection:
            connection.execute(delete(CHECKPOINTS))

    def open(self, url: str | None = None) -> SqlCheckpoints:
        """The store through an engine of its own."""
        return SqlCheckpoints(self._engine(url or self.url))

    def through(self, port: int) -> str:
        """The address of the same database behind another port."""
        return self.url.replace(f":{self.port}/", f":{port}/")

    @property
    def port(self) -> int:
        """Where the server listens."""
        return int(self.engine.url.port or 0)

    def read(self, name: str) -> Row | None:
        """The stored row."""
        with self.engine.connect() as connection:
            row = connection.execute(select(CHECKPOINTS).where(CHECKPOINTS.c.name == name)).first()
        return None if row is None else dict(row._mapping)

    def change(self, name: str, **fields: Any) -> None:
        """Overwrite fields of a stored row."""
        with self.engine.begin() as connection:
            connection.execute(update(CHECKPOINTS).where(CHECKPOINTS.c.name == name).values(**fields))

    def fill(self, names: list[str], cursor: str, counts: str) -> None:
        """Write one row per name."""
        values = func.json_each if self.kind == "sqlite" else func.json_array_elements_text
        name = (
            values(literal(names, JSON)).table_valued("value").c.value
        )  # one statement: 100,000 take a second
        row = select(name, literal(cursor), literal(counts), literal(1))
        with self.engine.begin() as connection:
            connection.execute(
                insert(CHECKPOINTS).from_select(["name", "cursor", "counts", "updated_at"], row)
            )

    def remove(self) -> None:
        """Remove everything, the tables as well."""
        METADATA.drop_all(self.engine)

    def close(self) -> None:
        """End every engine that was opened here."""
        for engine in self._engines:
            engine.dispose()

    def _engine(self, url: str) -> Engine:
        engine = sql.connect(url, timeout=5.0)
        self._engines.append(engine)
        return engine


Place = RedisPlace | SqlPlace
"""Where checkpoints are kept."""


@contextmanager
def place(kind: str, url: str) -> Iterator[Place]:
    """A place without checkpoints."""
    made: Place = RedisPlace(url) if kind == "redis" else SqlPlace(url, kind)
    try:
        yield made
    finally:
        made.close()


def open_store(url: str) -> Checkpoints:
    """The store at an address, as another process opens it."""
    if url.startswith("redis"):
        return RedisCheckpoints(redis.connect(RedisSettings(url=url)), PREFIX)  # type: ignore[arg-type]
    return SqlCheckpoints(sql.connect(url))
