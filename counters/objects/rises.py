"""What a number of keys does to a counter: which registers rise, and what has to be sent for that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from counters.errors import SketchError
from counters.objects.sketch import (
    INDEX_BITS,
    Hashes,
    Indices,
    Mirror,
    Registers,
    hash_keys,
    locate,
    sketch_of,
)
from counters.objects.spec import CounterSpec
from counters.objects.store import Addition, CounterStore

logger = logging.getLogger(__name__)

MERGE_FROM = 128
"""Keys for one stratum from which a HyperLogLog of them is sent instead. Redis takes about 1.3 µs for a key
in a script and 100 µs to merge 16,384 registers; a small counter has thousands of keys to send per batch."""


@dataclass(frozen=True, slots=True)
class Rise:
    """What keys do to one generation of a counter.

    Attributes:
        registers, ranks: which registers rise, flat, in order and none twice, and how far.
        strata: what makes them rise, per stratum: the keys, or a HyperLogLog to merge.
    """

    spec: CounterSpec
    registers: Indices
    ranks: Registers
    strata: Sequence[tuple[int, list[bytes] | bytes]]
    _mirror: Mirror

    @property
    def addition(self) -> Addition:
        """What to flush."""
        return Addition(self.spec, self.strata)

    def apply(self) -> None:
        """Remember what Redis has taken. Before it has, a key that is lost would never be sent again."""
        self._mirror.raise_to(self.registers, self.ranks)


class Mirrors:
    """A lower bound of the registers in Redis, per generation of a counter, read from ``store`` when first
    needed.

    Keys that cannot raise it need not be sent: at a billion distinct keys almost all of them. It is a filter
    only. Forget it whenever Redis may have lost registers.
    """

    def __init__(self, store: CounterStore) -> None:
        self._store = store
        self._mirrors: dict[tuple[str, int], Mirror] = {}

    def rises(self, spec: CounterSpec, keys: Sequence[bytes]) -> list[Rise]:
        """What ``keys`` do to every generation of a counter."""
        hashes = hash_keys(keys)
        return [self.rise(generation, keys, hashes) for generation in spec.generations]

    def rise(self, spec: CounterSpec, keys: Sequence[bytes], hashes: Hashes) -> Rise:
        """What ``keys`` do to one generation; ``hashes`` are those of the keys, in the same order."""
        mirror = self._mirror(spec)
        registers, ranks = locate(hashes, spec.precision)
        chosen = mirror.raising(registers, ranks)
        registers, ranks = registers[chosen], ranks[chosen]
        return Rise(spec, registers, ranks, _by_stratum(keys, chosen, registers, ranks), mirror)

    def drop(self, spec: CounterSpec) -> None:
        """Forget the registers of one generation."""
        self._mirrors.pop((spec.name, spec.generation), None)

    def forget(self) -> bool:
        """Forget the registers of all counters. Returns whether there were any."""
        known = bool(self._mirrors)
        self._mirrors.clear()
        return known

    def _mirror(self, spec: CounterSpec) -> Mirror:
        mirror = self._mirrors.get((spec.name, spec.generation))
        if mirror is None:
            mirror = Mirror(spec.precision)
            try:
                for stratum, registers in enumerate(self._store.registers(spec)):
                    if registers is not None:
                        mirror.load(stratum, registers)
            except SketchError as error:
                logger.error("counter %s: %s", spec.name, error)
            self._mirrors[spec.name, spec.generation] = mirror
        return mirror


def _by_stratum(
    keys: Sequence[bytes], chosen: Indices, registers: Indices, ranks: Registers
) -> list[tuple[int, list[bytes] | bytes]]:
    """What to send for the keys at ``chosen``, of which these are the registers, in order, and ranks."""
    if not len(chosen):
        return []
    strata = registers >> INDEX_BITS
    cuts = [0, *(np.flatnonzero(np.diff(strata)) + 1).tolist(), len(chosen)]
    groups: list[tuple[int, list[bytes] | bytes]] = []
    for a, b in pairwise(cuts):
        if b - a < MERGE_FROM:
            groups.append((int(strata[a]), [keys[i] for i in chosen[a:b].tolist()]))
        else:
            groups.append((int(strata[a]), sketch_of(registers[a:b], ranks[a:b])))
    return groups
