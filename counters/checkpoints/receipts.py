"""Receipts: what was done once and for all, so that doing it again is harmless.

A *positional* effect, such as adding to a total, counts twice when it happens twice. A batch whose answer got
lost has to be sent again all the same. So the script that makes the effect writes a receipt in the same step,
and leaves out what has one::

    for _, id in ipairs(receipts.missing(KEYS[1], ids)) do
      redis.call('INCRBY', KEYS[2], 5)
      receipts.write(KEYS[1], id)
    end

The receipt of a record is named by its coordinates and its time, ``<topic>:<partition>:<offset>@<time>``.
Without its receipt, a record that is retried is counted again: when receipts may be deleted is decided in
:mod:`counters.checkpoints.veto`.

Key: ``{counters}:receipts``, sorted set, id -> microseconds by the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import islice
from typing import Any, Final

from counters.answering import answering
from counters.checkpoints.model import instant
from counters.redis import AnyRedis

_FOLDER = files("counters.checkpoints")

RECEIPTS_LUA: Final = _FOLDER.joinpath("receipts.lua").read_text()
"""Defines ``receipts.missing`` and ``receipts.write``, for scripts that make an effect."""

CHUNK = 1_000
"""Ids per call: everybody else waits meanwhile, up to 10 ms for this many."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Receipts:
    """The receipts under one prefix.

    Every method raises :class:`~counters.errors.StoreUnavailable` when Redis does not answer, and
    :class:`~counters.errors.StoreError` when the key holds something else.

    Attributes:
        key: where they are, for scripts that include :data:`RECEIPTS_LUA`.
    """

    def __init__(self, client: AnyRedis, prefix: str) -> None:
        self.key: Final = f"{{{prefix}}}:receipts"
        self._client = client
        self._drop = client.register_script(RECEIPTS_LUA + _FOLDER.joinpath("receipts_drop.lua").read_text())
        self._keep = client.register_script(_FOLDER.joinpath("receipts_keep.lua").read_text())
        self._prune = client.register_script(_FOLDER.joinpath("receipts_prune.lua").read_text())

    def known(self, ids: Iterable[str]) -> set[str]:
        """Those of ``ids`` that have a receipt."""
        known: set[str] = set()
        for chunk in _chunks(ids):
            with answering(self.key):
                scores: Any = self._client.zmscore(self.key, chunk)
            known.update(id_ for id_, score in zip(chunk, scores, strict=True) if score is not None)
        return known

    def drop(self, ids: Iterable[str]) -> int:
        """Mark ``ids`` as handled without any effect; how many were not handled before."""
        dropped = 0
        for chunk in _chunks(ids):
            with answering(self.key):
                dropped += int(self._drop(keys=[self.key], args=chunk))
        return dropped

    def keep(self, ids: Iterable[str]) -> int:
        """Let the receipts of ``ids`` count as written now, since what they are about is still there; how
        many there are."""
        kept = 0
        for chunk in _chunks(ids):
            with answering(self.key):
                kept += int(self._keep(keys=[self.key], args=chunk))
        return kept

    def count(self) -> int:
        """How many there are."""
        with answering(self.key):
            count: Any = self._client.zcard(self.key)
        return int(count)

    def oldest(self) -> datetime | None:
        """When the oldest was written (UTC, the server's clock); None: there are none."""
        with answering(self.key):
            found: Any = self._client.zrange(self.key, 0, 0, withscores=True)
        return instant(int(found[0][1])) if found else None

    def count_before(self, cutoff: datetime) -> int:
        """How many are older than ``cutoff``."""
        with answering(self.key):
            count: Any = self._client.zcount(self.key, "-inf", f"({_microseconds(cutoff)}")
        return int(count)

    def delete_before(self, cutoff: datetime, limit: int) -> int:
        """Delete at most ``limit`` of those older than ``cutoff``, the oldest first; how many that were."""
        with answering(self.key):
            return int(self._prune(keys=[self.key], args=[_microseconds(cutoff), limit]))


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
