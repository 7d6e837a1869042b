"""Counters and positions in Redis: what is written together, in one script, and what is read back.

Keys (the prefix is a hash tag, so that all of it lives on one node of a cluster)::

    {counters}:registry           hash  counter -> JSON of CounterSpec
    {counters}:hll:<counter>:…    HLL   one per stratum, created when the counter is registered
    {counters}:offsets:<group>    hash  <topic>:<partition> -> next_offset, and <topic> -> records counted
    {counters}:definitions:<group> hash <topic> -> what is looked for inside its messages, as JSON
    {counters}:stamps             hash  counter -> Unix milliseconds of its last flush, by the server's clock

Records counted live and die with the positions, which is what keeps them exact under replay.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files

import msgspec
import numpy as np
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import (
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from counters.errors import SketchError, StoreError
from counters.objects.sketch import REGISTERS, Registers, read_blob, write_blob
from counters.objects.spec import CounterSpec, decode_spec
from counters.redis import AnyRedis
from journal_client.batch import Partition
from journal_client.errors import Unavailable

logger = logging.getLogger(__name__)

_TRANSIENT = (
    "OOM",
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
)
"""Error codes of a server that cannot write now and may be able to later."""

_EMPTY = write_blob(np.zeros(REGISTERS, np.uint8))


class Stale(Exception):
    """The positions in the store are not those this worker last wrote; nothing was written."""


class Redefined(Exception):
    """Something else is to be looked for in a topic of the batch; nothing was written."""


class Vanished(Exception):
    """Counters lost keys; nothing was written."""

    def __init__(self, counters: Sequence[str]) -> None:
        super().__init__(", ".join(counters))
        self.counters = list(counters)


@dataclass(frozen=True, slots=True)
class Addition:
    """What raises registers of one counter.

    ``strata`` holds pairs of stratum number and either keys or, as bytes, a HyperLogLog to merge; empty if
    nothing can raise a register.
    """

    spec: CounterSpec
    strata: Sequence[tuple[int, list[bytes] | bytes]]


@dataclass(frozen=True, slots=True)
class Flush:
    """Everything one atomic write changes.

    Attributes:
        next_offsets: where reading goes on.
        messages: records counted, per topic.
        additions: one per counter that the batch feeds, also when no key is left to send.
        definitions: what was looked for, per topic.
    """

    next_offsets: Mapping[Partition, int]
    messages: Mapping[str, int]
    additions: Sequence[Addition]
    definitions: Mapping[str, bytes] = field(default_factory=dict)


class CounterStore:
    """One consumer group's view in Redis.

    Every method raises :class:`~journal_client.errors.Unavailable` when Redis is down, full or read-only.
    """

    def __init__(self, client: AnyRedis, prefix: str, group: str) -> None:
        self._client = client
        self._prefix = prefix
        self._registry = f"{{{prefix}}}:registry"
        self._stamps = f"{{{prefix}}}:stamps"
        self._offsets = f"{{{prefix}}}:offsets:{group}"
        self._merging = f"{{{prefix}}}:merging:{group}"
        self._definitions = f"{{{prefix}}}:definitions:{group}"
        self._expected: dict[Partition, int | None] = {}
        self._entries: dict[str, bytes] = {}
        self._failures = 0
        script = {name: files("counters.objects").joinpath(f"{name}.lua").read_text() for name in _SCRIPTS}
        self._flush = client.register_script(script["flush"])
        self._register = client.register_script(script["register"])
        self._repair = client.register_script(script["repair"])
        self._define = client.register_script(script["define"])

    def ping(self) -> None:
        """Whether the server answers at all."""
        with self._available():
            self._client.ping()

    def register(self, spec: CounterSpec, topics: Sequence[str] = ()) -> CounterSpec:
        """Enter a counter, fed by ``topics``, into the registry; an existing counter's own spec holds.

        Its strata are created unless the group has read one of ``topics``: then they must be there.
        """
        with self._available():
            answer = self._register(
                keys=[self._registry, self._offsets, *spec.keys(self._prefix)],
                args=[spec.name, msgspec.json.encode(spec), _EMPTY, *topics],
            )
        self._entries[spec.name] = answer
        return decode_spec(answer)

    def registers(self, spec: CounterSpec) -> list[Registers | None]:
        """The registers of each stratum; None where the key is missing.

        Raises:
            SketchError: a key holds something that is not a HyperLogLog.
        """
        with self._available():
            blobs = self._client.mget(spec.keys(self._prefix))
        return [None if blob is None else read_blob(bytes(blob)) for blob in blobs]  # type: ignore[arg-type]

    def is_filled(self, spec: CounterSpec) -> bool:
        """Whether the counter already counted something."""
        try:
            return any(r is not None and bool(r.any()) for r in self.registers(spec))
        except SketchError:
            return False

    def positions(self, partitions: Collection[Partition]) -> tuple[dict[Partition, int | None], bool]:
        """Where the view stands, and whether that is somewhere else than this worker last wrote."""
        wanted = list(partitions)
        if not wanted:
            return {}, False
        with self._available():
            answer = self._client.hmget(self._offsets, [_field(p) for p in wanted])
        stored = {p: self._position(p, raw) for p, raw in zip(wanted, answer, strict=True)}
        moved = any(p in self._expected and self._expected[p] != offset for p, offset in stored.items())
        self._expected.update(stored)
        return stored, moved

    def _position(self, partition: Partition, raw: bytes | str | None) -> int | None:
        if raw is None:
            return None
        try:
            return int(raw)
        except ValueError:
            raise StoreError(
                f"{self._offsets} holds {raw!r} for {partition}, not an offset; delete it from Redis"
            ) from None

    def missing(self, specs: Collection[CounterSpec]) -> list[CounterSpec]:
        """The counters that lost at least one key, or their entry in the registry."""
        with self._available():
            pipeline = self._client.pipeline(transaction=False)
            for spec in specs:
                pipeline.exists(*spec.keys(self._prefix))
                pipeline.hexists(self._registry, spec.name)
            answers = iter(pipeline.execute())
        return [spec for spec in specs if next(answers) + next(answers) < spec.strata + 1]

    def flush(self, flush: Flush) -> list[str]:
        """The one atomic write, of counters registered through this store.

        Returns:
            The counters whose keys hold something that is not a HyperLogLog.

        Raises:
            Stale, Redefined, Vanished: nothing was written.
        """
        keys, arguments = self._encode(flush)
        with self._available():
            status, *names = self._flush(keys=keys, args=arguments)
        if status == b"redefined":
            raise Redefined
        if status == b"stale":
            raise Stale
        if status == b"vanished":
            raise Vanished([name.decode() for name in names])
        self._expected.update(flush.next_offsets)
        return [name.decode() for name in names]

    def repair(self, spec: CounterSpec, forget: Sequence[str]) -> bool:
        """Create what a counter lost; if that were strata, forget the positions of the topics ``forget``.

        Returns:
            Whether strata were missing; False if only the registry had lost it, or another worker was faster.
        """
        with self._available():
            keys = [self._offsets, self._registry, *spec.keys(self._prefix)]
            # what is read again from the beginning was not adopted
            anew = msgspec.json.encode(msgspec.structs.replace(spec, adopted=False, epoch=spec.epoch + 1))
            return bool(self._repair(keys=keys, args=[_EMPTY, spec.name, anew, *forget]))

    def definitions(self, topics: Sequence[str]) -> dict[str, bytes | None]:
        """What is to be looked for in each topic; None where nobody said so yet."""
        if not topics:
            return {}
        with self._available():
            answer = self._client.hmget(self._definitions, list(topics))
        return {t: None if raw is None else bytes(raw) for t, raw in zip(topics, answer, strict=True)}  # type: ignore[arg-type]

    def define(
        self,
        topic: str,
        before: bytes | None,
        after: bytes,
        *,
        anew: Sequence[CounterSpec],
        forget: Sequence[str],
    ) -> bool:
        """Say what is to be looked for in ``topic``, empty the counters ``anew``, forget the positions of
        ``forget``.

        Returns:
            Whether ``before`` still held; False: nothing was done.
        """
        keys = [self._definitions, self._offsets, self._registry]
        arguments: list[bytes | str | int] = [topic, before or "", after, _EMPTY, len(anew)]
        for spec in anew:
            keys += spec.keys(self._prefix)
            arguments += (spec.name, msgspec.json.encode(msgspec.structs.replace(spec, epoch=spec.epoch + 1)))
        with self._available():
            return bool(self._define(keys=keys, args=[*arguments, *forget]))

    def forget_positions(self) -> None:
        """Let the next worker of this group read everything again."""
        with self._available():
            self._client.delete(self._offsets)
        self._expected.clear()

    def _encode(self, flush: Flush) -> tuple[list[str], list[bytes | str | int]]:
        keys: list[str] = [self._offsets, self._stamps, self._merging, self._registry, self._definitions]
        arguments: list[bytes | str | int] = [len(flush.definitions)]
        for topic, definition in flush.definitions.items():
            arguments += (topic, definition)
        arguments.append(len(flush.next_offsets))
        for partition, next_offset in flush.next_offsets.items():
            expected = self._expected.get(partition)
            arguments += (_field(partition), "" if expected is None else expected, next_offset)
        arguments.append(len(flush.messages))
        for topic, n in flush.messages.items():
            arguments += (topic, n)
        arguments.append(len(flush.additions))
        groups: list[tuple[int, int, list[bytes] | bytes]] = []
        for number, addition in enumerate(flush.additions, start=1):
            spec = addition.spec
            arguments += (spec.name, self._entries[spec.name], spec.strata)
            groups += [(number, len(keys) + 1 + stratum, some) for stratum, some in addition.strata]
            keys += spec.keys(self._prefix)
        arguments.append(len(groups))
        for number, index, some in groups:
            if isinstance(some, bytes):
                arguments += (number, index, 0, some)
            else:
                arguments += (number, index, len(some))
                arguments += some
        return keys, arguments

    @contextmanager
    def _available(self) -> Iterator[None]:
        """Turns what may pass by itself into ``Unavailable``, waiting longer each time (0.5 s to 10 s)."""
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError) as error:
            raise self._unavailable(error) from error
        except ResponseError as error:
            if not str(error).startswith(_TRANSIENT):
                raise StoreError(f"Redis refuses: {str(error).removeprefix('FOREIGN ')}") from error
            raise self._unavailable(error) from error
        else:
            self._failures = 0

    def _unavailable(self, error: RedisError) -> Unavailable:
        if isinstance(error, ReadOnlyError):
            # the primary became a replica: the pool still points at it
            self._client.close()
        self._failures += 1
        return Unavailable(f"Redis: {error}", retry_after=min(10.0, 0.25 * 2.0**self._failures))


_SCRIPTS = ("flush", "register", "repair", "define")


def _field(partition: Partition) -> str:
    return f"{partition.topic}:{partition.partition}"
