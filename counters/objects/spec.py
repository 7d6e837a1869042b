"""What a counter is, how it is named in Redis, and what reading one yields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from counters.config import MAX_PRECISION, MIN_PRECISION, Layout
from counters.errors import StoreError

BASE_PRECISION = 14
"""Index bits of one Redis HyperLogLog (16,384 registers)."""

BASE_STANDARD_ERROR = 0.008125
"""Relative standard error of one Redis HyperLogLog: 1.04 / sqrt(16384)."""


class Successor(msgspec.Struct, frozen=True):
    """The next generation of a counter while the journal is counted into it once more."""

    precision: int
    generation: int


class CounterSpec(msgspec.Struct, frozen=True):
    """One entry of the registry. The number of strata is part of the data: changing it needs a rebuild."""

    name: str
    precision: int = 18
    generation: int = 1
    layout: Layout = Layout.NATIVE
    adopted: bool = False
    """Whether the counter held data before it was registered: then the group's commits say how far it had
    read."""

    epoch: int = 0
    """Grows with every change of the entry, so that no two states of it are alike: whoever knows an older one
    may have known registers that are gone."""

    successor: Successor | None = None
    """The generation that is fed beside this one, and takes its place."""

    @property
    def strata(self) -> int:
        """Redis HyperLogLogs this counter is spread over."""
        return int(1 << (self.precision - BASE_PRECISION))

    @property
    def standard_error(self) -> float:
        """Relative standard error of the estimate (a fraction, not per cent)."""
        return float(BASE_STANDARD_ERROR / self.strata**0.5)

    @property
    def following(self) -> CounterSpec | None:
        """The successor as a counter of its own."""
        if self.successor is None:
            return None
        return CounterSpec(self.name, self.successor.precision, self.successor.generation, epoch=self.epoch)

    @property
    def generations(self) -> list[CounterSpec]:
        """What keys are added to: the counter, and what follows it."""
        return [self] if self.following is None else [self, self.following]

    def keys(self, prefix: str) -> list[str]:
        """The Redis keys of the strata, in order."""
        if self.layout is Layout.LEGACY:
            return [self.name]
        return [f"{{{prefix}}}:hll:{self.name}:{self.generation}:{n}" for n in range(self.strata)]


def encode_spec(spec: CounterSpec) -> bytes:
    """The entry of the registry for a counter. All but a missing successor is written out: people read it."""
    entry = msgspec.structs.asdict(spec)
    if spec.successor is None:
        del entry["successor"]
    return msgspec.json.encode(entry)


def decode_spec(entry: bytes) -> CounterSpec:
    """The counter behind an entry of the registry.

    Raises:
        StoreError: it is not one; says why. A precision out of bounds would create keys without end.
    """
    try:
        spec = msgspec.json.decode(entry, type=CounterSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"an entry of the registry is not a counter: {error}; delete it from Redis"
        ) from error
    for precision in (spec.precision, *([spec.successor.precision] if spec.successor else [])):
        if not MIN_PRECISION <= precision <= MAX_PRECISION:
            raise StoreError(
                f"counter {spec.name} has precision {precision} in the registry, not {MIN_PRECISION} to "
                f"{MAX_PRECISION}; delete its entry from Redis"
            )
    if spec.successor is not None and spec.successor.generation != spec.generation + 1:
        raise StoreError(
            f"counter {spec.name} of generation {spec.generation} has a successor of generation "
            f"{spec.successor.generation} in the registry; delete its entry from Redis"
        )
    return spec


@dataclass(frozen=True, slots=True)
class Count:
    """One published number, with how exact and how old it is.

    Attributes:
        name: the counter.
        value: the estimate; None if it could not be read (``reason`` says why).
        standard_error: relative, a fraction.
        updated_at: when a worker last wrote to the counter, by the store's clock (UTC); None if never.
        as_of: when the value was read, by the store's clock (UTC).
        suspect: the value fell, or part of the counter vanished: data was lost and is being read again.
        messages: records that went into the counter, repetitions included; None for derived counters.
        reason: why ``value`` is None or ``suspect`` is set.
    """

    name: str
    value: int | None
    standard_error: float
    updated_at: datetime | None
    as_of: datetime
    suspect: bool = False
    messages: int | None = None
    reason: str | None = None

    @property
    def lower(self) -> int | None:
        """Value less two standard errors (about 95 % confidence), never below 0."""
        return None if self.value is None else max(0, round(self.value * (1 - 2 * self.standard_error)))

    @property
    def upper(self) -> int | None:
        """Value plus two standard errors (about 95 % confidence)."""
        return None if self.value is None else round(self.value * (1 + 2 * self.standard_error))
