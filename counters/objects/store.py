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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from counters.checkpoints.model import Advance
from counters.checkpoints.receipts import RECEIPTS_LUA, Receipts
from counters.checkpoints.redis_store import ROW_LUA, RedisCheckpoints, raise_refused
from counters.config import Layout, ObjectsSettings
from counters.errors import SketchError, StoreError
from counters.objects.server import EMPTY, Server
from counters.objects.sketch import Registers, read_blob
from counters.objects.spec import BASE_PRECISION, CounterSpec, decode_spec, encode_spec
from counters.redis import AnyRedis
from journal_client.batch import Partition

logger = logging.getLogger(__name__)


class Stale(Exception):
    """The positions in the store are not those this worker last wrote; nothing was written."""


class Redefined(Exception):
    """Something else is to be looked for in a topic of the batch; nothing was written."""


class Receipted(Exception):
    """A record has been counted before; nothing was written."""


class Vanished(Exception):
    """Counters lost keys; nothing was written."""

    def __init__(self, counters: Sequence[str]) -> None:
        super().__init__(", ".join(counters))
        self.counters = list(counters)


@dataclass(frozen=True, slots=True)
class Addition:
    """What raises registers of one generation of a counter.

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
        additions: one per generation of a counter that the batch feeds, also when no key is left to send.
        definitions: what was looked for, per topic.
        advance: of the task whose work this is; None: of none.
        receipts: of records that are counted apart from any position, each once.
    """

    next_offsets: Mapping[Partition, int]
    messages: Mapping[str, int]
    additions: Sequence[Addition]
    definitions: Mapping[str, bytes] = field(default_factory=dict)
    advance: Advance | None = None
    receipts: Sequence[str] = ()


class CounterStore:
    """One consumer group's view in Redis.

    Every method raises :class:`~journal_client.errors.Unavailable` when Redis is down, full or read-only.
    """

    def __init__(self, client: AnyRedis, prefix: str, group: str) -> None:
        self._server = Server(client)
        self._prefix = prefix
        self._registry = f"{{{prefix}}}:registry"
        self._stamps = f"{{{prefix}}}:stamps"
        self._offsets = f"{{{prefix}}}:offsets:{group}"
        self._merging = f"{{{prefix}}}:merging:{group}"
        self._definitions = f"{{{prefix}}}:definitions:{group}"
        self._expected: dict[Partition, int | None] = {}
        # Per spec, not per name: threads may hold different states of one counter.
        self._entries: dict[CounterSpec, bytes] = {}
        self._checkpoints = RedisCheckpoints(client, prefix)
        self._receipts = Receipts(client, prefix)
        self._flush = self._server.script("flush", before=ROW_LUA + RECEIPTS_LUA)
        self._register = self._server.script("register")
        self._repair = self._server.script("forget", "repair")
        self._define = self._server.script("forget", "define")

    def ping(self) -> None:
        """Whether the server answers at all."""
        with self._server.available():
            self._server.client.ping()

    def register(self, spec: CounterSpec, topics: Sequence[str] = ()) -> CounterSpec:
        """Enter a counter, fed by ``topics``, into the registry; an existing counter's own spec holds.

        Its strata are created unless the group has read one of ``topics``: then they must be there.
        """
        with self._server.available():
            answer = self._register(
                keys=[self._registry, self._offsets, *spec.keys(self._prefix)],
                args=[spec.name, encode_spec(spec), EMPTY, *topics],
            )
        return self._known(answer)

    def find(self, name: str) -> CounterSpec | None:
        """The counter as it is registered now, None if it is not. Flushes of it are refused as soon as that
        changes."""
        with self._server.available():
            entry = self._server.client.hget(self._registry, name)
        return None if entry is None else self._known(bytes(entry))  # type: ignore[arg-type]

    def _known(self, entry: bytes) -> CounterSpec:
        spec = decode_spec(entry)
        for generation in spec.generations:
            self._entries[generation] = entry
        return spec

    def registers(self, spec: CounterSpec) -> list[Registers | None]:
        """The registers of each stratum; None where the key is missing.

        Raises:
            SketchError: a key holds something that is not a HyperLogLog.
        """
        with self._server.available():
            blobs = self._server.client.mget(spec.keys(self._prefix))
        return [None if blob is None else read_blob(bytes(blob)) for blob in blobs]  # type: ignore[arg-type]

    def snapshot(self, spec: CounterSpec) -> tuple[dict[Partition, int], Registers]:
        """All positions of the group, and the registers of a counter (flat) at the same moment.

        Raises:
            StoreError: a key holds something else, or is missing.
        """
        with self._server.available():
            pipeline = self._server.client.pipeline(transaction=True)
            pipeline.hgetall(self._offsets)
            pipeline.mget(spec.keys(self._prefix))
            offsets, blobs = pipeline.execute()
        try:
            registers = np.concatenate([read_blob(bytes(blob)) for blob in blobs])
        except (SketchError, TypeError) as error:
            raise StoreError(f"counter {spec.name} cannot be read from Redis: {error}") from error
        return {
            p: n for field, raw in offsets.items() if (p := _partition(field)) and (n := int(raw))
        }, registers

    def new_spec(self, name: str, settings: ObjectsSettings) -> CounterSpec:
        """What a counter becomes that is not registered yet. Flat keys that hold something are adopted."""
        if settings.layout is Layout.NATIVE:
            return CounterSpec(name, settings.precision)
        spec = CounterSpec(name, BASE_PRECISION, layout=Layout.LEGACY)
        return msgspec.structs.replace(spec, adopted=self.is_filled(spec))

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
        with self._server.available():
            answer = self._server.client.hmget(self._offsets, [_field(p) for p in wanted])
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
        """The counters that lost at least one key, one of their successor's, or their entry in the
        registry."""
        keys = {spec: [key for g in spec.generations for key in g.keys(self._prefix)] for spec in specs}
        with self._server.available():
            pipeline = self._server.client.pipeline(transaction=False)
            for spec, strata in keys.items():
                pipeline.exists(*strata)
                pipeline.hexists(self._registry, spec.name)
            answers = iter(pipeline.execute())
        return [spec for spec in keys if next(answers) + next(answers) < len(keys[spec]) + 1]

    def flush(self, flush: Flush) -> list[CounterSpec]:
        """The one atomic write, of counters registered or found through this store, and their successors.

        Returns:
            The counters of ``flush`` whose keys hold something that is not a HyperLogLog.

        Raises:
            Stale, Redefined, Vanished: nothing was written.
            ClaimLost, CursorMoved: nothing was written; only with ``flush.advance``.
            Receipted: nothing was written; only with ``flush.receipts``.
        """
        keys, arguments = self._encode(flush)
        with self._server.available():
            status, *some = self._flush(keys=keys, args=arguments)
        if flush.advance is not None:
            raise_refused(status, flush.advance.name)
        if status == b"receipted":
            raise Receipted
        if status == b"redefined":
            raise Redefined
        if status == b"stale":
            raise Stale
        if status == b"vanished":
            raise Vanished(list(dict.fromkeys(name.decode() for name in some)))
        self._expected.update(flush.next_offsets)
        return [flush.additions[number - 1].spec for number in some]

    def repair(self, spec: CounterSpec, forget: Sequence[str]) -> bool:
        """Create what a counter lost; if that were strata, forget the positions of the topics ``forget``.
        Whatever was lost, a successor is given up, and has to be rebuilt from the beginning.

        Returns:
            Whether strata were missing; False if only the registry or the successor was lost, or another
            worker was faster.
        """
        keys = [self._offsets, self._registry]
        for generation in spec.generations:
            keys += generation.keys(self._prefix)
        alone = msgspec.structs.replace(spec, epoch=spec.epoch + 1, successor=None)
        # what is read again from the beginning was not adopted
        anew = msgspec.structs.replace(alone, adopted=False)
        entries = [self._entries[spec], encode_spec(anew), encode_spec(alone)]
        with self._server.available():
            return bool(self._repair(keys=keys, args=[spec.name, *entries, EMPTY, spec.strata, *forget]))

    def definitions(self, topics: Sequence[str]) -> dict[str, bytes | None]:
        """What is to be looked for in each topic; None where nobody said so yet."""
        if not topics:
            return {}
        with self._server.available():
            answer = self._server.client.hmget(self._definitions, list(topics))
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
        """Say what is to be looked for in ``topic``, empty the counters ``anew`` and give up their
        successors, forget the positions of ``forget``.

        Returns:
            Whether ``before`` and the counters still were as this worker knew them; False: nothing was done.
        """
        emptied = [key for spec in anew for key in spec.keys(self._prefix)]
        dropped = [key for spec in anew if spec.following for key in spec.following.keys(self._prefix)]
        keys = [self._definitions, self._offsets, self._registry, *emptied, *dropped]
        arguments: list[bytes | str | int] = [topic, before or "", after, EMPTY, len(emptied), len(anew)]
        for spec in anew:
            alone = msgspec.structs.replace(spec, epoch=spec.epoch + 1, successor=None)
            arguments += (spec.name, self._entries[spec], encode_spec(alone))
        with self._server.available():
            return bool(self._define(keys=keys, args=[*arguments, *forget]))

    def forget_positions(self) -> None:
        """Let the next worker of this group read everything again."""
        with self._server.available():
            self._server.client.delete(self._offsets)
        self._expected.clear()

    def _encode(self, flush: Flush) -> tuple[list[str], list[bytes | str | int]]:
        keys: list[str] = [self._offsets, self._stamps, self._merging, self._registry, self._definitions]
        arguments: list[bytes | str | int] = [0]
        if flush.advance is None:
            keys += (self._offsets, self._offsets)  # two that are not looked at
        else:
            more, progress = self._checkpoints.encode(flush.advance)
            keys += more
            arguments = [1, *progress]
        keys.append(self._receipts.key)
        arguments += (len(flush.receipts), *flush.receipts)
        arguments.append(len(flush.definitions))
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
            arguments += (spec.name, self._entries[spec], spec.strata)
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


def _partition(field: bytes) -> Partition | None:
    """The partition whose position a field is; None: it is the number of records counted of a topic."""
    topic, colon, number = field.decode(errors="replace").rpartition(":")
    return Partition(topic, int(number)) if colon else None


def _field(partition: Partition) -> str:
    return f"{partition.topic}:{partition.partition}"
