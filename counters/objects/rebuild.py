"""Counting a counter anew, with another precision perhaps, while the live workers go on.

1. Give the counter a successor. From then on the workers feed both (see generations).
2. Count everything the journal holds at that moment into the successor. The cursor is written with the keys.
3. When that is done, compare: the successor must not fall short of the counter by more than their errors
   explain, or the journal does not hold any more what was counted.
4. Switch, in one step.

Until step 4 the published count is the old one. A successor that was given up meanwhile (its counter lost
keys, or counts other values now) is begun anew.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from counters.checkpoints.model import Advance, CursorMoved
from counters.checkpoints.runner import Done, Turn
from counters.errors import CountersError, StoreError
from counters.objects.bulk import Footing
from counters.objects.generations import Generations
from counters.objects.ranges import Journal, Range, progress_of
from counters.objects.rises import Mirrors
from counters.objects.sketch import estimate_strata, hash_keys
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore, Flush, Stale, Vanished

logger = logging.getLogger(__name__)

BATCH = 200_000
"""Records per batch."""

TOLERANCE = 4.0
"""Standard errors (of both estimates together) by which the successor may fall short: once in 30,000 rebuilds
it does without a key missing."""


class FallsShort(CountersError):
    """The recount is too far below the count it is to replace."""


class Rebuild:
    """The rebuild of one counter.

    Args:
        allow_fall: switch although the recount falls short.

    Attributes:
        counts: estimates of the counter before and after, once they are compared.
    """

    unit = "records"

    def __init__(
        self,
        counter: str,
        precision: int,
        store: CounterStore,
        generations: Generations,
        journal: Journal,
        *,
        allow_fall: bool = False,
    ) -> None:
        self.name = f"rebuild:{counter}"
        self.counts: tuple[int, int] | None = None
        self._counter = counter
        self._precision = precision
        self._store = store
        self._generations = generations
        self._journal = journal
        self._allow_fall = allow_fall
        self._mirrors = Mirrors(store)
        self._footing = Footing()

    def batch(self, turn: Turn) -> Done:
        """The next records into the successor; at the end, the switch.

        Raises:
            FallsShort: nothing was switched.
        """
        if self._is_switched(turn.cursor):
            return Done(None)
        if not turn.cursor:
            self._journal.feeding(self._counter)  # without a topic, nothing is begun
        spec = self._begin()
        range_ = self._range(spec, turn.cursor)
        portion = self._journal.read(range_, BATCH)
        if portion.rest is None:
            self._switch(spec)
            return Done(None, failed=portion.failed)
        position = portion.rest.cursor() | {"generation": spec.generation, "epoch": spec.epoch}
        done = Done(position, ok=len(portion.batch), failed=portion.failed, recorded=True)
        self._add(spec, self._journal.keys_of(portion, self._counter), turn.advance(done))
        return done

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """Offsets done, and of how many."""
        return progress_of(cursor)

    def _begin(self) -> CounterSpec:
        begun = self._generations.begin(self._counter, self._precision)
        if self._store.find(self._counter) != begun:
            raise self._given_up()
        return begun

    def _range(self, spec: CounterSpec, cursor: Mapping[str, Any]) -> Range:
        if cursor.get("epoch") == spec.epoch:
            return Range.of_cursor(cursor, self.name, self._journal.extraction.topics_of(self._counter))
        if cursor:
            logger.warning("the successor of %s was given up meanwhile; beginning anew", self._counter)
        self._mirrors.forget()
        # After the beginning: whatever a worker flushed before it lies below these ends.
        return Range.between(self._journal.feeding(self._counter))

    def _is_switched(self, cursor: Mapping[str, Any]) -> bool:
        """Whether it was killed between the switch and the record of that."""
        generation = cursor.get("generation")
        if not isinstance(generation, int):
            return False
        spec = self._store.find(self._counter)
        return spec is not None and spec.generation == generation + 1

    def _add(self, spec: CounterSpec, keys: list[bytes], advance: Advance) -> None:
        assert spec.following is not None
        if not self._footing.leave(advance):
            self._mirrors.forget()
        rise = self._mirrors.rise(spec.following, keys, hash_keys(keys))
        try:
            broken = self._store.flush(Flush({}, {}, [rise.addition], advance=advance))
        except (Stale, Vanished):
            raise self._given_up() from None
        if broken:
            raise StoreError(
                f"a key of the successor of {self._counter} holds something else; begin anew with --abandon"
            )
        rise.apply()
        self._footing.reach(advance)

    def _switch(self, spec: CounterSpec) -> None:
        assert spec.following is not None
        old, new = self._estimate(spec), self._estimate(spec.following)
        if new is None:
            raise self._given_up()
        if old is None:
            logger.warning(
                "counter %s lacks keys in Redis; nothing to compare the recount with", self._counter
            )
            old = 0
        errors = math.hypot(old * spec.standard_error, new * spec.following.standard_error)
        self.counts = (old, new)
        if new < old - TOLERANCE * errors and not self._allow_fall:
            raise FallsShort(
                f"the recount of {self._counter} found {new:,} where {old:,} were counted, and errors "
                f"explain only {TOLERANCE * errors:,.0f}: the journal does not hold everything any more. "
                "Nothing was switched; --allow-fall switches, --abandon gives the recount up"
            )
        try:
            self._generations.switch(spec)
        except Stale:
            raise self._given_up() from None

    def _estimate(self, spec: CounterSpec) -> int | None:
        """None if strata are missing."""
        registers = self._store.registers(spec)
        whole = [one for one in registers if one is not None]
        return estimate_strata(np.concatenate(whole)) if len(whole) == len(registers) else None

    def _given_up(self) -> CursorMoved:
        """The runner reads the row, and this begins anew."""
        return CursorMoved(f"the counter {self._counter} was repaired or changed meanwhile")
