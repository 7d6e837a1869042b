"""Checkpoints in Redis, beside the counters whose tasks they are about. One script, one round trip each.

Keys (the prefix is a hash tag, so that they share a write with the counters)::

    {counters}:checkpoints   hash    name -> its row, a JSON object of strings
    {counters}:claim:<name>  string  who runs it, see redis_claim
    {counters}:epoch         string  number of claims taken so far

All rows are in one key: 100,000 of them are listed three times as fast as from keys of their own, and none is
evicted alone. Moments are microseconds by the server's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, Final

import msgspec

from counters.answering import answering
from counters.checkpoints.model import (
    ABSENT,
    DAMAGED,
    IDLE,
    Absent,
    Advance,
    Checkpoint,
    ClaimLost,
    Counts,
    Cursor,
    CursorMoved,
    Desired,
    Fence,
    NotFound,
    check_advance,
    check_name,
    decode_map,
    encode_counts,
    encode_cursor,
    instant,
    is_name,
    runner,
    wanted,
)
from counters.checkpoints.redis_claim import ClaimKeys, RedisClaim, holder_of, take
from counters.errors import StoreError
from counters.redis import AnyRedis

ROW_LUA: Final = files("counters.checkpoints").joinpath("row.lua").read_text()
"""Defines ``checkpoint.refused`` and ``checkpoint.advance``, also for scripts that include such a write."""

PAGE = 2_000
"""Rows read at a time: everybody else waits meanwhile, some 2 ms for this many."""

_NOW = "@now"


class _Stored(msgspec.Struct, gc=False):
    """A row as it is stored. Cursor and counts are JSON within JSON: Lua would round their numbers."""

    updated_at: str
    cursor: str = "{}"
    counts: str = "{}"
    desired: str = "run"
    observed: str = IDLE
    desired_at: str | None = None
    heartbeat_at: str | None = None
    runner: str | None = None
    ok: str = "0"
    failed: str = "0"


_decode = msgspec.json.Decoder(_Stored).decode


class RedisCheckpoints:
    """The :class:`~counters.checkpoints.store.Checkpoints` under one prefix."""

    def __init__(self, client: AnyRedis, prefix: str) -> None:
        self._client = client
        self._tag = f"{{{prefix}}}"
        self._key = f"{self._tag}:checkpoints"
        folder = files("counters.checkpoints")
        self._advance, self._set = (
            client.register_script(ROW_LUA + folder.joinpath(f"{name}.lua").read_text())
            for name in ("advance", "set")
        )
        self._clock = client.register_script("return redis.call('TIME')")  # TIME has no node in a cluster

    def get(self, name: str) -> Checkpoint | None:
        with answering(self._key):
            stored: Any = self._client.hget(self._key, check_name(name))
        return None if stored is None else _row(name, stored)

    def list(self) -> list[Checkpoint]:
        found: dict[bytes, bytes] = {}
        with answering(self._key):
            found.update(self._client.hscan_iter(self._key, count=PAGE))
        names = ((name, name.decode(errors="replace")) for name in sorted(found))
        return [_row_or_damage(text, found[name]) for name, text in names if is_name(text)]

    def foreign(self) -> Sequence[str]:
        """Fields of the hash whose names are no tasks'. They are not listed, and hold up nothing."""
        with answering(self._key):
            names: Any = self._client.hkeys(self._key)
        texts = sorted(name.decode(errors="replace") for name in names)
        return [text for text in texts if not is_name(text)]

    def put(
        self, name: str, cursor: Cursor | None, counts: Counts, state: str, *, fence: Fence | None = None
    ) -> None:
        self._write(name, _given(cursor, counts, state), fence)

    def advance(
        self,
        name: str,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        *,
        fence: Fence | None = None,
    ) -> None:
        check_advance(cursor, counts)
        self.apply(Advance(name, cursor, counts, fence=fence))

    def apply(self, advance: Advance) -> None:
        keys, arguments = self.encode(advance)
        with answering(self._key):
            answer = self._advance(keys=keys, args=arguments)
        raise_refused(answer, advance.name)

    def encode(self, advance: Advance) -> tuple[Sequence[str], Sequence[str | int]]:
        """What a script takes to make this write: keys of checkpoints and claim; arguments for
        ``checkpoint.refused`` (token, expected) and then, from the name on, for ``checkpoint.advance``."""
        name = check_name(advance.name)
        cursor, counts, fence = advance.cursor, advance.counts, advance.fence
        return [self._key, self._claim_key(name) if fence is None else fence.key], [
            "" if fence is None else fence.token,
            "*" if advance.expected is None else advance.expected,
            name,
            "" if isinstance(cursor, Absent) else encode_cursor(cursor),
            "" if isinstance(counts, Absent) else encode_counts(counts),
            advance.runner or "",
            advance.ok,
            advance.failed,
        ]

    def update(
        self,
        name: str,
        *,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        state: str | Absent = ABSENT,
        fence: Fence | None = None,
    ) -> None:
        self._write(name, _given(cursor, counts, state), fence, must_exist=True)

    def heartbeat(self, name: str, runner_: str | None = None, *, fence: Fence | None = None) -> None:
        fields = ["runner", runner_ or runner(), "heartbeat_at", _NOW, "observed", "running"]
        self._write(name, fields, fence, must_exist=True)

    def delete(self, name: str) -> bool:
        with answering(self._key):
            return bool(self._client.hdel(self._key, check_name(name)))

    def pause(self, name: str) -> None:
        self._write(name, ["desired", Desired.PAUSED.value, "desired_at", _NOW])

    def resume(self, name: str) -> None:
        self._write(name, ["desired", Desired.RUN.value, "desired_at", _NOW, "observed", IDLE])

    def paused(self, name: str) -> bool:
        row = self.get(name)
        return row is not None and row.desired is Desired.PAUSED

    def claim(self, name: str, runner_: str | None = None) -> RedisClaim:
        return take(self._client, self._claim_keys(name), runner_ or runner())

    def holder(self, name: str) -> str | None:
        return holder_of(self._client, self._claim_keys(name))

    def now(self) -> datetime:
        with answering(self._key):
            seconds, micros = self._clock(keys=[self._key])
        return instant(int(seconds) * 1_000_000 + int(micros))

    def _write(
        self, name: str, fields: Sequence[str], fence: Fence | None = None, *, must_exist: bool = False
    ) -> None:
        keys = [self._key, self._claim_key(check_name(name)) if fence is None else fence.key]
        token = "" if fence is None else fence.token
        with answering(self._key):
            answer = self._set(keys=keys, args=[token, name, int(must_exist), *fields])
        raise_refused(answer, name)

    def _claim_key(self, name: str) -> str:
        return f"{self._tag}:claim:{name}"

    def _claim_keys(self, name: str) -> ClaimKeys:
        return ClaimKeys(check_name(name), self._claim_key(name), f"{self._tag}:epoch")


def raise_refused(answer: bytes, name: str) -> None:
    """Raise what a script's answer means, unless that is "ok"."""
    if answer == b"fenced":
        raise ClaimLost(f"the claim on {name} went to another runner; nothing was written")
    if answer == b"moved":
        raise CursorMoved(f"the cursor of {name} was moved since the batch began; nothing was written")
    if answer == b"missing":
        raise NotFound(f"there is no checkpoint {name}; counters checkpoints list shows those there are")
    if answer == b"foreign":
        raise StoreError("the key of the checkpoints in Redis holds something else; delete it")


def _given(cursor: Cursor | Absent | None, counts: Counts | Absent, state: str | Absent) -> list[str]:
    fields: list[str] = []
    if not isinstance(cursor, Absent):
        fields += ("cursor", encode_cursor(cursor))
    if not isinstance(counts, Absent):
        fields += ("counts", encode_counts(counts))
    if not isinstance(state, Absent):
        desired, observed = wanted(state)
        if desired is not None:
            fields += ("desired", desired.value, "desired_at", _NOW)
        if observed is not None:
            fields += ("observed", observed)
    return fields


def _row(name: str, stored: bytes) -> Checkpoint:
    try:
        row = _decode(stored)
        return Checkpoint(
            name=name,
            position=decode_map(name, "cursor", row.cursor),
            counts=decode_map(name, "counts", row.counts),
            desired=Desired.PAUSED if row.desired == "paused" else Desired.RUN,
            observed=row.observed,
            updated_at=instant(row.updated_at),
            desired_at=None if row.desired_at is None else instant(row.desired_at),
            heartbeat_at=None if row.heartbeat_at is None else instant(row.heartbeat_at),
            runner=row.runner,
            items={"ok": int(row.ok), "failed": int(row.failed)},
            token=row.cursor,
        )
    except (ValueError, OverflowError, msgspec.DecodeError) as error:
        raise StoreError(
            f"the checkpoint {name} in Redis is damaged ({error}); counters checkpoints delete {name}"
        ) from error


def _row_or_damage(name: str, stored: bytes) -> Checkpoint:
    """The row; one that is damaged is shown as that, and does not hide the others."""
    try:
        return _row(name, stored)
    except StoreError:
        return Checkpoint(name, {}, {}, Desired.RUN, DAMAGED, instant(0))
