"""Recounting a range of the journal exactly, and comparing with the counter.

The range is what the group had read, and the journal still held, when the task began; the registers of the
counter are those of the same moment. Two things are compared:

- the estimate with the exact number of different keys. If the journal does not reach back to its first record
  any more, the counter knows keys that cannot be recounted: then the estimate is that of a sketch of the
  range, made here.
- register by register: none of the counter's may be lower than the keys of the range make it. A lower one
  means that keys were lost, however good the estimate looks.

The cursor is written after the work: a batch killed in between is read again, and the spool cuts off what it
had written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counters.checkpoints.runner import Done, Turn
from counters.errors import InputError, StoreError
from counters.objects.exact import Spool
from counters.objects.extraction import Extraction
from counters.objects.ranges import Range, progress_of, read
from counters.objects.sketch import Registers, estimate_strata, hash_keys, locate
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore
from journal_client.scan import TopicScan

logger = logging.getLogger(__name__)

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
        whole: whether the range reaches back to the first record of the journal, so that the estimate is that
            of the counter.
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
        directory: for the keys of the range; about 28 bytes each.
    """

    unit = "records"

    def __init__(
        self, counter: str, store: CounterStore, scan: TopicScan, extraction: Extraction, directory: Path
    ) -> None:
        self.name = f"verify:{counter}"
        self._counter = counter
        self._store = store
        self._scan = scan
        self._extraction = extraction
        self._directory = directory
        self._spool: Spool | None = None
        self.verdict: Verdict | None = None

    def batch(self, turn: Turn) -> Done:
        """The next records; at the end, the comparison."""
        cursor = turn.cursor or self._begin()
        self._directory = Path(cursor["directory"])
        spool = self._open(cursor["spool"])
        precision = int(cursor["precision"])
        portion = read(self._scan, Range.of_cursor(cursor), BATCH)
        if portion.rest is None:
            self.verdict = self._compare(cursor, spool)
            return Done(None, failed=portion.failed, counts=_counts(self.verdict))
        keys = self._extraction.keys(portion.batch, only=[self._counter]).get(self._counter, [])
        hashes = hash_keys(keys)
        if keys:
            spool.add(keys, hashes)
            expected = self._load(_EXPECTED)
            np.maximum.at(expected, *locate(hashes, precision))
            self._save(_EXPECTED, expected)
        return Done(
            cursor | portion.rest.cursor() | {"spool": spool.token},
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
        """Delete what the task wrote, once its verdict is stored."""
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
        marks = self._scan.watermarks(self._topics())
        starts = {partition: mark.low for partition, mark in marks.items()}
        ends = {
            partition: max(mark.low, min(mark.high, positions.get(partition, mark.low)))
            for partition, mark in marks.items()
        }
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._save(_COUNTED, counted)
        self._save(_EXPECTED, np.zeros_like(counted))
        return Range(starts, starts, ends).cursor() | {
            "precision": spec.precision,
            "directory": str(self._directory),
            "spool": None,
        }

    def _topics(self) -> list[str]:
        sources = self._extraction.sources_of(self._counter)
        return [self._extraction.topic_of(name) for name in sources or [self._counter]]

    def _open(self, token: dict[str, Any] | None) -> Spool:
        """The spool at the state the cursor names."""
        if self._spool is None or self._spool.token != token:
            self.close()
            self._spool = Spool.open(self._directory, token)
        return self._spool

    def _compare(self, cursor: Mapping[str, Any], spool: Spool) -> Verdict:
        counted, expected = self._load(_COUNTED), self._load(_EXPECTED)
        whole = not any(Range.of_cursor(cursor).starts.values())
        return Verdict(
            exact=spool.count(),
            estimate=estimate_strata(counted if whole else expected),
            standard_error=CounterSpec(self._counter, int(cursor["precision"])).standard_error,
            lost=int(np.count_nonzero(counted < expected)),
            whole=whole,
        )

    def _load(self, name: str) -> Registers:
        try:
            registers: Registers = np.load(self._directory / name)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self._directory / name} cannot be read ({error}); start again with counters checkpoints "
                f"rewind {self.name}"
            ) from error
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


def _counts(verdict: Verdict) -> dict[str, Any]:
    return {
        "exact": verdict.exact,
        "estimate": verdict.estimate,
        "deviation": round(verdict.deviation, 3),
        "lost_registers": verdict.lost,
    }
