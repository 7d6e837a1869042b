"""The history in Redis: one hash per history, replaced whole, shared by every replica.

Fields of ``{counters}:history:<name>``::

    data       msgpack: counter -> [times, values], each an array in little-endian bytes
    refreshed  when the data were written;  tried: when that was last attempted, also in vain
    every      seconds from one refresh to the next
    problem    why the last attempt failed; absent if it did not
    version    changes with every visible change

Moments are microseconds by the server's clock. The data are not compressed: twenty years at twelve hours of
ten counters are 2.3 MB, which load in 3 ms; unpacking half of that would take longer than sending all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np

from counters.answering import answering
from counters.checkpoints.claim import Claim
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.errors import StoreError
from counters.history.series import Series
from counters.redis import AnyRedis

OVERDUE = 2
"""Refreshes missed in a row that make a history stale although none of them failed: nobody refreshes it."""

_SECOND = 1_000_000
_META = ("refreshed", "tried", "every", "problem", "version")
_Columns = dict[str, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A history as it was last published.

    Attributes:
        series: points by counter.
        refreshed_at: when it was last rebuilt (UTC, the store's clock).
        stale: the last attempt to rebuild it failed, or nobody tried for long.
        problem: why it is stale; None if it is not.
        version: another one means that something visible changed; fit for an ETag.
    """

    series: dict[str, Series]
    refreshed_at: datetime
    stale: bool
    problem: str | None
    version: str


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a history without reading it.

    Attributes:
        now: the store's clock, Unix seconds.
        refreshed: when it was last rebuilt, Unix seconds; None: never.
        tried: when that was last attempted; None: never.
        every: seconds from one refresh to the next.
        failure: why the last attempt failed; None if it did not.
        written: tells the stored versions apart.
    """

    now: float
    refreshed: float | None
    tried: float | None
    every: float
    failure: str | None
    written: str

    @property
    def overdue(self) -> bool:
        """Whether nobody refreshes it any more."""
        return self.refreshed is not None and self.now - self.refreshed > (OVERDUE + 1) * self.every

    @property
    def problem(self) -> str | None:
        """Why the history is stale; None if it is not."""
        if self.failure is None and self.overdue:
            return "nothing refreshes it; run counters serve"
        return self.failure

    @property
    def version(self) -> str:
        """Another one means that something visible changed."""
        return f"{self.written}-overdue" if self.overdue else self.written


class HistoryStore:
    """The histories under one prefix.

    Every method raises :class:`~counters.errors.StoreUnavailable` when Redis does not answer or refuses, and
    :class:`~counters.errors.StoreError` when the key holds something else.
    """

    def __init__(self, client: AnyRedis, prefix: str) -> None:
        self._client = client
        self._tag = f"{{{prefix}}}"
        self.checkpoints = RedisCheckpoints(client, prefix)
        """Of the tasks that rebuild the histories."""
        self._clock = client.register_script(
            "return redis.call('TIME')"
        )  # TIME alone has no node in a cluster
        self._write, self._fail = (
            client.register_script(files("counters.history").joinpath(name).read_text())
            for name in ("write.lua", "fail.lua")
        )

    def load(self, name: str = "default") -> History | None:
        """The history as last published; None if there never was one."""
        state, data = self._fetch(name, "data")
        if data is None or state.refreshed is None:
            return None
        return History(
            series=_decode(self._key(name), data),
            refreshed_at=datetime.fromtimestamp(state.refreshed, UTC),
            stale=state.problem is not None,
            problem=state.problem,
            version=state.version,
        )

    def version(self, name: str = "default") -> str | None:
        """:attr:`History.version` alone, for a fraction of the cost; None if there is no history."""
        state = self.state(name)
        return None if state.refreshed is None else state.version

    def state(self, name: str = "default") -> State:
        """What is known of the history without reading it."""
        return self._fetch(name)[0]

    def claim(self, name: str = "default") -> Claim:
        """The claim that a refresh of ``name`` holds.

        Raises:
            AlreadyRunning: another refresh holds it.
        """
        return self.checkpoints.claim(task_of(name))

    def write(self, name: str, claim: Claim, series: Mapping[str, Series], every: float) -> bool:
        """Replace the history whole; False if ``claim`` was lost and nothing is written."""
        with answering(self._key(name)):
            arguments: list[bytes | str] = [claim.fence.token, _encode(series), f"{every:.6f}"]
            return bool(self._write(keys=[self._key(name), claim.fence.key], args=arguments))

    def fail(self, name: str, claim: Claim, problem: str) -> bool:
        """Note why the history could not be refreshed, and keep it; False if ``claim`` was lost."""
        with answering(self._key(name)):
            return bool(
                self._fail(keys=[self._key(name), claim.fence.key], args=[claim.fence.token, problem])
            )

    def _key(self, name: str) -> str:
        return f"{self._tag}:history:{name}"

    def _fetch(self, name: str, *more: str) -> tuple[State, Any]:
        """The state, and the value of the first of ``more`` fields, from the same moment."""
        with answering(self._key(name)):
            values: list[Any] = self._client.hmget(self._key(name), [*_META, *more])
            seconds, micros = self._clock(keys=[self._key(name)])
        refreshed, tried, every, problem, version = values[: len(_META)]
        state = State(
            now=int(seconds) + int(micros) / _SECOND,
            refreshed=None if refreshed is None else int(refreshed) / _SECOND,
            tried=None if tried is None else int(tried) / _SECOND,
            every=float(every or 0),
            failure=None if problem is None else problem.decode(errors="replace"),
            written=(version or b"").decode(),
        )
        return state, values[len(_META)] if more else None


def task_of(name: str) -> str:
    """The task that rebuilds a history."""
    return f"history:{name}"


def _encode(series: Mapping[str, Series]) -> bytes:
    columns = {
        name: (one.times.astype("<i8").tobytes(), one.values.astype("<f8").tobytes())
        for name, one in series.items()
    }
    return msgspec.msgpack.encode(columns)


def _decode(key: str, data: bytes) -> dict[str, Series]:
    try:
        columns = msgspec.msgpack.decode(data, type=_Columns)
        return {
            name: Series(np.frombuffer(times, "<i8"), np.frombuffer(values, "<f8"))
            for name, (times, values) in columns.items()
        }
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreError(
            f"{key} in Redis is damaged ({error}): restore it, or rebuild it with "
            "counters history refresh --allow-shrink"
        ) from error
