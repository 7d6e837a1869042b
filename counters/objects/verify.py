"""Recounting a range of the journal exactly, and comparing with the counter.

The range is what the group had read, and the journal still held, when the task began; the registers of the
counter are those of the same moment. Two things are compared:

- the estimate with the exact number of different keys. If the journal does not reach back to its first record
  any more, or loses records before they are read, the counter knows keys that cannot be recounted: then the
  estimate is that of a sketch of the range, made here.
- register by register: none of the counter's may be lower than the keys of the range make it. A lower one
  means that keys were lost, however good the estimate looks.

Keys that came past the journal, out of a dump perhaps, show as a deviation. The cursor is written after the
work: a batch killed in between is read again, and the spool cuts off what it had written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counters.checkpoints.runner import Done, Turn
from counters.errors import InputError, StoreError
from counters.objects.exact import Spool
from counters.objects.ranges import Journal, Range, progress_of
from counters.objects.sketch import Registers, estimate_strata, hash_keys, locate
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore

BATCH = 200_000
"""Records per batch."""

MOST = 4.0
"""Standard errors by which an estimate may deviate: it does once in 15,000 counters."""

_COUNTED, _EXPECTED = "counted.npy", "expected.npy"
"""Registers of the counter when the task began, and those the keys of the range make, so far."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a recount found.

    Attributes:
        exact: different keys in the range.
        estimate: what the sketch says of them.
        standard_error: of the estimate, relative.
        lost: registers of the counter that are lower than the keys of the range make them.
        whole: whether every record since the first one of the journal was recounted, so that the estimate is
            that of the counter.
    """

    exact: int
    estimate: int
    standard_error: float
    lost: int
    whole: bool

    @property
    def deviation(self) -> float:
        """Of the estimate, in standard errors; 0 where both are equal."""
        difference = self.estimate - self.exact
        return difference / max(self.exact * self.standard_error, 1.0) if difference else 0.0

    @property
    def good(self) -> bool:
        """Whether the counter is as it should be."""
        return abs(self.deviation) <= MOST and self.lost == 0


class Verification:
    """The recount of one counter.

    Args:
        directory: it exists, and is for the keys of the range: about 28 bytes each.
    """

    unit = "records"

    def __init__(self, counter: str, store: CounterStore, journal: Journal, directory: Path) -> None:
        self.name = f"verify:{counter}"
        self.verdict: Verdict | None = None
        self._counter = counter
        self._store = store
        self._journal = journal
        self._directory = directory
        self._spool: Spool | None = None

    def batch(self, turn: Turn) -> Done:
        """First, what is to be recounted; then the next records; at the end, the comparison."""
        if not turn.cursor:
            return Done(self._begin())
        range_ = Range.of_cursor(turn.cursor, self.name, self._journal.extraction.topics_of(self._counter))
        spool, precision, whole = self._resume(turn.cursor)
        portion = self._journal.read(range_, BATCH)
        whole = whole and not portion.expired
        if portion.rest is None:
            self.verdict = self._compare(spool, precision, whole)
            return Done(None, failed=portion.failed, counts=_counts(self.verdict))
        keys = self._journal.keys_of(portion, self._counter)
        if keys:
            hashes = hash_keys(keys)
            expected = self._load(_EXPECTED, precision)
            np.maximum.at(expected, *locate(hashes, precision))
            spool.add(keys, hashes)
            self._save(_EXPECTED, expected)
        return Done(
            portion.rest.cursor() | {"precision": precision, "whole": whole, "spool": spool.token},
            ok=len(portion.batch),
            failed=portion.failed,
        )

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """Offsets done, and of how many."""
        return progress_of(cursor)

    def close(self) -> None:
        """Let go of the directory."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def remove(self) -> None:
        """Delete what the task wrote, once its verdict is stored. The directory stays."""
        if self._spool is not None:
            self._spool.remove()
            self._spool = None
        for name in (_COUNTED, _EXPECTED):
            (self._directory / name).unlink(missing_ok=True)

    def _begin(self) -> dict[str, Any]:
        spec = self._store.find(self._counter)
        if spec is None:
            raise InputError(f"there is no counter {self._counter}; counters check shows those there are")
        positions, counted = self._store.snapshot(spec)
        marks = self._journal.feeding(self._counter)
        starts = {partition: mark.low for partition, mark in marks.items()}
        ends = {
            partition: max(mark.low, min(mark.high, positions.get(partition, mark.low)))
            for partition, mark in marks.items()
        }
        self.close()
        self._spool = Spool.open(self._directory)  # first of all: nobody else writes here from now on
        self._save(_COUNTED, counted)
        self._save(_EXPECTED, np.zeros_like(counted))
        return Range(starts, starts, ends).cursor() | {
            "precision": spec.precision,
            "whole": not any(starts.values()),
            "spool": self._spool.token,
        }

    def _resume(self, cursor: Mapping[str, Any]) -> tuple[Spool, int, bool]:
        """The spool at the state the cursor names, the precision of the counter, and whether all of the
        journal was there so far."""
        try:
            token, precision, whole = cursor["spool"], cursor["precision"], cursor["whole"]
            if self._spool is None or self._spool.token != token:
                self.close()
                self._spool = Spool.open(self._directory, token)
        except (KeyError, TypeError) as error:
            raise self._lost(f"the cursor of {self.name} is none of this task") from error
        except (InputError, StoreError) as error:
            raise self._lost(str(error)) from error
        return self._spool, int(precision), bool(whole)

    def _compare(self, spool: Spool, precision: int, whole: bool) -> Verdict:
        counted, expected = self._load(_COUNTED, precision), self._load(_EXPECTED, precision)
        return Verdict(
            exact=spool.count(),
            estimate=estimate_strata(counted if whole else expected),
            standard_error=CounterSpec(self._counter, precision).standard_error,
            lost=int(np.count_nonzero(counted < expected)),
            whole=whole,
        )

    def _load(self, name: str, precision: int) -> Registers:
        path = self._directory / name
        try:
            registers: Registers = np.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise self._lost(f"{path} cannot be read: {error}") from error
        if registers.dtype != np.uint8 or registers.shape != (1 << precision,):
            raise self._lost(f"{path} does not hold the registers of this counter")
        return registers

    def _save(self, name: str, registers: Registers) -> None:
        """Whole or not at all."""
        new = self._directory / f"{name}.new"
        try:
            with new.open("wb") as file:
                np.save(file, registers)
            new.replace(self._directory / name)
        except OSError as error:
            raise StoreError(f"{new} cannot be written: {error.strerror}; change --spool") from error

    def _lost(self, why: str) -> StoreError:
        return StoreError(f"{why}; begin anew with counters checkpoints rewind {self.name}")


def _counts(verdict: Verdict) -> dict[str, Any]:
    return {
        "exact": verdict.exact,
        "estimate": verdict.estimate,
        "deviation": round(verdict.deviation, 3),
        "lost_registers": verdict.lost,
    }
