"""Reads every counter of the registry: two round trips, and one more per small counter that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np
from redis.cluster import RedisCluster
from redis.exceptions import RedisError, ResponseError

from counters.errors import SketchError, StoreError, StoreUnavailable
from counters.objects.sketch import estimate_strata, read_blob
from counters.objects.spec import Count, CounterSpec, decode_spec
from counters.redis import AnyRedis

Command = tuple[Any, ...]

FEW = 512
"""Keys per stratum below which the counter is estimated from its registers: rounded stratum by stratum, as
PFCOUNT does, a small counter comes out too low. Above, the roundings cancel out."""


@dataclass(frozen=True, slots=True)
class _Registered:
    """What the first round trip says about all counters."""

    registry: Mapping[bytes, bytes]
    stamps: Mapping[bytes, bytes]
    offsets: Mapping[bytes, bytes]
    now: datetime


class CountsReader:
    """The published counts, each with how exact and how old it is.

    A foreign, corrupt or missing key takes away the value of its own counter and of no other. Not
    thread-safe: the high-water marks belong to one caller.
    """

    def __init__(self, redis: AnyRedis, prefix: str, group: str, topic_prefix: str) -> None:
        """
        Args:
            redis: a client in bytes mode.
            prefix: first part of every key, without the braces of the hash tag.
            group: the consumer group whose records are reported as ``messages``.
            topic_prefix: topics are named ``<topic_prefix>.<object type>``.
        """
        self._redis = redis
        self._prefix = prefix
        self._group = group
        self._topic_prefix = topic_prefix
        self._highest: dict[str, tuple[CounterSpec, int]] = {}
        self._small: dict[str, tuple[object, int]] = {}

    def read(self) -> list[Count]:
        """All registered counters, ordered by name.

        Raises:
            StoreUnavailable: Redis does not answer, or not with what the registry should be.
        """
        found, answered = self._ask()
        counts = [
            self._count(spec, answers, found)
            if isinstance(spec, CounterSpec)
            else _unreadable(spec, found.now)
            for spec, answers in answered
        ]
        return sorted([*counts, *self._gone(found)], key=lambda count: count.name)

    def _ask(self) -> tuple[_Registered, list[tuple[CounterSpec | tuple[str, str], list[Any]]]]:
        """What is registered, and the answers about each counter.

        Strata that are missing may be those of a generation that was replaced since the registry was read.
        """
        found = self._registered()
        while True:
            specs = [self._spec(name, entry) for name, entry in found.registry.items()]
            asked = [list(self._commands(spec)) if isinstance(spec, CounterSpec) else [] for spec in specs]
            answers = iter(self._run([command for commands in asked for command in commands]))
            answered = [
                (spec, list(islice(answers, len(some)))) for spec, some in zip(specs, asked, strict=True)
            ]
            whole = all(isinstance(spec, tuple) or some[-1] == spec.strata for spec, some in answered)
            again = found if whole else self._registered()
            if again.registry == found.registry:
                return found, answered
            found = again

    def _registered(self) -> _Registered:
        tag = f"{{{self._prefix}}}"
        keys = [f"{tag}:registry", f"{tag}:stamps", f"{tag}:offsets:{self._group}"]
        answers = self._run([*(("HGETALL", key) for key in keys), ("TIME",)])
        for key, answer in zip([*keys, "TIME"], answers, strict=True):
            if isinstance(answer, Exception):
                raise StoreUnavailable(
                    f"Redis refuses to read {key}: {answer}; check redis.url and redis.prefix"
                )
        registry, stamps, offsets, (seconds, microseconds) = answers
        now = datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
        return _Registered(registry, stamps, offsets, now)

    def _spec(self, name: bytes, entry: bytes) -> CounterSpec | tuple[str, str]:
        """The counter's spec, or its name and why the entry is not one."""
        shown = name.decode(errors="replace")
        try:
            spec = decode_spec(entry)
        except StoreError as error:
            return shown, str(error)
        if spec.name != shown:
            return shown, f"its registry entry names another counter: {spec.name}"
        return spec

    def _commands(self, spec: CounterSpec) -> Iterator[Command]:
        """One PFCOUNT per stratum: asked for several keys at once it would merge their registers and
        estimate with the error of a single one. EXISTS tells a missing key from an empty one, and is last to
        tell of all that went missing until then.
        """
        keys = spec.keys(self._prefix)
        for key in keys:
            yield ("PFCOUNT", key)
        yield ("EXISTS", *keys)

    def _count(self, spec: CounterSpec, answers: Sequence[Any], found: _Registered) -> Count:
        keys = spec.keys(self._prefix)
        stamp = found.stamps.get(spec.name.encode())
        *parts, present = answers
        error = next((answer for answer in [*parts, present] if isinstance(answer, Exception)), None)
        value: int | None = None
        reason: str | None
        if error is not None:
            reason = f"Redis refuses to count {spec.name}: {error}"
        elif present == 0:
            reason = "vanished"
        elif present < len(keys):
            value, reason = sum(parts), f"vanished: {len(keys) - present} of {len(keys)} strata"
        else:
            value, reason = self._risen(spec, self._sum(spec, parts, stamp))
        return Count(
            name=spec.name,
            value=value,
            standard_error=spec.standard_error,
            updated_at=_time(stamp),
            as_of=found.now,
            suspect=error is None and reason is not None,
            messages=_number(found.offsets.get(f"{self._topic_prefix}.{spec.name}".encode())),
            reason=reason,
        )

    def _sum(self, spec: CounterSpec, parts: Sequence[int], stamp: bytes | None) -> int:
        """The estimate of all strata together; of a small counter from its registers, read once per
        change."""
        if spec.strata == 1 or sum(parts) > FEW * spec.strata:
            return sum(parts)
        version = (spec.generation, stamp, tuple(parts))
        known = self._small.get(spec.name)
        if known is not None and known[0] == version:
            return known[1]
        try:
            [blobs] = self._run([("MGET", *spec.keys(self._prefix))])
            value = estimate_strata(np.concatenate([read_blob(blob) for blob in blobs]))
        except (SketchError, TypeError):  # deleted or replaced since PFCOUNT: the next read says so
            return sum(parts)
        self._small[spec.name] = (version, value)
        return value

    def _risen(self, spec: CounterSpec, value: int) -> tuple[int, str | None]:
        """The value to publish, and why it is suspect if it is below one read before: registers only ever
        rise.

        A difference that rounding the strata explains is no fall, and is not shown as one.
        """
        known, highest = self._highest.get(spec.name, (spec, 0))
        if known.generation == spec.generation and value < highest:
            if value >= highest - spec.strata // 2:
                return highest, None
            return value, f"fell from {highest} to {value}"
        self._highest[spec.name] = (spec, value)
        return value, None

    def _gone(self, found: _Registered) -> Iterator[Count]:
        """Counters read before and not registered any more: a wiped store is not an empty one."""
        for name, (spec, _) in self._highest.items():
            if name.encode() not in found.registry:
                yield Count(
                    name,
                    None,
                    spec.standard_error,
                    updated_at=None,
                    as_of=found.now,
                    suspect=True,
                    reason="vanished",
                )

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        """The answers in order, an error in place of the answer it is for.

        Raises:
            StoreUnavailable: the connection failed, or Redis is loading its data.
        """
        if not commands:
            return []
        try:
            if isinstance(self._redis, RedisCluster):
                return [self._single(self._redis, command) for command in commands]
            with self._redis.pipeline(transaction=False) as pipeline:
                queue: Callable[..., Any] = pipeline.execute_command
                for command in commands:
                    queue(*command)
                return list(pipeline.execute(raise_on_error=False))
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis does not answer: {error}; check redis.url") from error

    @staticmethod
    def _single(redis: RedisCluster, command: Command) -> Any:
        """redis-py refuses PFCOUNT in a cluster pipeline although one key has one slot."""
        execute: Callable[..., Any] = redis.execute_command
        try:
            return execute(*command)
        except ResponseError as error:
            return error


def _number(field: bytes | None) -> int | None:
    """The number in a field of a hash; None too where something else is in it: that costs this field only."""
    try:
        return None if field is None else int(field)
    except ValueError:
        return None


def _time(stamp: bytes | None) -> datetime | None:
    """The time a field holds in Unix milliseconds, None as in :func:`_number`."""
    milliseconds = _number(stamp)
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _unreadable(entry: tuple[str, str], now: datetime) -> Count:
    name, reason = entry
    standard_error = CounterSpec(name).standard_error
    return Count(name, None, standard_error, updated_at=None, as_of=now, reason=reason)
