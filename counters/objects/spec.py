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
    """How often lost strata were created anew. An older epoch may have known registers that are gone."""

    @property
    def strata(self) -> int:
        """Redis HyperLogLogs this counter is spread over."""
        return int(1 << (self.precision - BASE_PRECISION))

    @property
    def standard_error(self) -> float:
        """Relative standard error of the estimate (a fraction, not per cent)."""
        return float(BASE_STANDARD_ERROR / self.strata**0.5)

    def keys(self, prefix: str) -> list[str]:
        """The Redis keys of the strata, in order."""
        if self.layout is Layout.LEGACY:
            return [self.name]
        return [f"{{{prefix}}}:hll:{self.name}:{self.generation}:{n}" for n in range(self.strata)]


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
    if not MIN_PRECISION <= spec.precision <= MAX_PRECISION:
        raise StoreError(
            f"counter {spec.name} has precision {spec.precision} in the registry, not {MIN_PRECISION} to "
            f"{MAX_PRECISION}; delete its entry from Redis"
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
