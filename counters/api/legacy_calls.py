"""What the RPC endpoints of swh-counters do, apart from HTTP and encodings.

Each call takes its arguments as they came, checks them, and returns what is to be encoded.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from counters.api.latest import LatestCounts, View
from counters.api.past import LatestHistory, LoadsHistory
from counters.api.swh_wire import RpcError, keys_of, try_again
from counters.checkpoints.operations import Operations
from counters.config import LegacyApiSettings
from counters.history import files
from counters.history.refresh import RefreshBusy

FRESH_SECONDS = 1.0
"""How long an answer waits until what this process wrote has been read again."""

TURN_SECONDS, TURN_LOOK_SECONDS = 10.0, 0.1
"""How long ``/refresh_history`` waits for a refresh that is running, and how often it looks. Most take a
second; after a 503 clients try again by themselves."""

_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.-]{1,200}")
"""Names of counters: what can name a topic; ``.`` and ``..`` cannot."""


class AddsKeys(Protocol):
    """What ``/add`` writes to."""

    def add(self, counter: str, keys: Sequence[bytes]) -> None:
        """Add keys; raises Unavailable or CountersError."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the endpoints reach beyond the counts. What is None is not served.

    Attributes:
        writer: takes the keys of ``/add``.
        history: holds the history that all replicas share.
        refresh: rebuilds the history; says why it could not, None if it could.
        operations: shows and changes the tasks.
    """

    writer: AddsKeys | None = None
    history: LoadsHistory | None = None
    refresh: Callable[[], str | None] | None = None
    operations: Operations | None = None


class CountCalls:
    """The calls that ask for numbers.

    They answer from the last read like everything else here, except that what this process added is waited
    for: clients count on seeing their own additions.
    """

    def __init__(self, latest: LatestCounts) -> None:
        self._latest = latest
        self._added: dict[str, float] = {}

    def note_addition(self, counter: str) -> None:
        """Remember that ``counter`` was written to just now."""
        self._added[counter] = time.monotonic()

    async def check(self) -> bool:
        """Whether the store answers."""
        return not self._latest.view().stale

    async def count(self, collection: object) -> int:
        """One number; 0 for a counter nobody knows.

        A count that is not known, or that fell, is no number: the client is told to try again.
        """
        [name] = _names([collection], "collection")
        view = await self._current([name])
        value = _value(view, name)
        if value is None:
            raise try_again(f"{name} has no reliable count now (see /api/v1/counts)")
        return value

    async def counts(self, collections: object) -> dict[str, int]:
        """The numbers in the order asked for. One that is not known is left out, never 0."""
        names = _names(collections, "collections")
        view = await self._current(names)
        values = ((name, _value(view, name)) for name in names)
        return {name: value for name, value in values if value is not None}

    async def names(self) -> list[bytes]:
        """Every counter; as bytes, which is what clients got from Redis."""
        return [name.encode() for name in (await self._current(list(self._added))).counts or {}]

    async def _current(self, names: Sequence[str]) -> View:
        view = self._latest.view()
        if self._added:
            view = await self._including_additions(names)
        if view.stale or view.counts is None:
            raise try_again("the store does not answer")
        return view

    async def _including_additions(self, names: Sequence[str]) -> View:
        added_at = max((self._added.get(name, 0.0) for name in names), default=0.0)
        if self._latest.view().began_at <= added_at:
            self._latest.read_soon()
            await _until(lambda: self._latest.view().began_at > added_at)
        return self._latest.view()


class KeyCalls:
    """The call that adds."""

    def __init__(self, writer: AddsKeys | None, counts: CountCalls) -> None:
        self._writer = writer
        self._counts = counts

    async def add(self, collection: object, keys: object) -> None:
        """Add keys to a counter, which is made if it does not exist."""
        [name] = _names([collection], "collection")
        if not _NAME.fullmatch(name):
            raise RpcError(
                400, "ValueError", f"{name!r:.80} cannot name a counter: use letters, digits and ._-"
            )
        if self._writer is None:
            raise RpcError(403, "PermissionError", "this server only reads")
        await asyncio.to_thread(self._add, self._writer, name, keys)

    def _add(self, writer: AddsKeys, name: str, keys: object) -> None:
        writer.add(name, keys_of(keys))
        self._counts.note_addition(name)


class HistoryCalls:
    """The calls about the history, which goes by the names of files and comes from memory."""

    def __init__(
        self, past: LatestHistory, refresh: Callable[[], str | None] | None, settings: LegacyApiSettings
    ) -> None:
        self._past = past
        self._refresh = refresh
        self._names = frozenset(settings.history_files)
        self._types = frozenset(settings.history_types)
        self._encoded: tuple[str, bytes] = ("", b"")

    def file(self, name: object) -> bytes:
        """The history as compact JSON, counters in order of their names."""
        self._check(name)
        history = self._past.history
        if history is None:
            raise RpcError(404, "FileNotFoundError", "there is no history yet")
        if self._encoded[0] != history.version:
            wanted = sorted(history.series.keys() & self._types if self._types else history.series)
            content = files.encode({counter: history.series[counter] for counter in wanted})
            self._encoded = (history.version, content + b"\n")
        return self._encoded[1]

    async def content(self, cache_file: object) -> object:
        """The same, to be encoded."""
        return msgspec.json.decode(self.file(cache_file))

    async def refresh(self, cache_file: object, objects: object = None, static_file: object = None) -> None:
        """Rebuild the history and wait until it is served. What goes into it is for the settings to say, not
        for the caller."""
        self._check(cache_file)
        if self._refresh is None:
            raise RpcError(403, "PermissionError", "this server does not rebuild the history")
        before = self._past.history
        problem = await self._in_turn(self._refresh)
        if problem is not None:
            raise RpcError(503, "RuntimeError", f"refreshing the history failed: {problem}")
        self._past.look_soon()
        await _until(lambda: self._past.history is not before)

    async def _in_turn(self, refresh: Callable[[], str | None]) -> str | None:
        deadline = time.monotonic() + TURN_SECONDS
        while True:
            try:
                return await asyncio.to_thread(refresh)
            except RefreshBusy as error:
                if time.monotonic() >= deadline:
                    raise try_again(str(error)) from error
            await asyncio.sleep(TURN_LOOK_SECONDS)

    def _check(self, name: object) -> None:
        if not isinstance(name, str) or name not in self._names:
            raise RpcError(404, "FileNotFoundError", "there is no such history; see api.legacy.history_files")


async def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FRESH_SECONDS
    while not done() and time.monotonic() < deadline:  # noqa: ASYNC110 - threads change what it waits for
        await asyncio.sleep(0.002)


def _names(names: object, argument: str) -> list[str]:
    if not isinstance(names, list):
        raise RpcError(
            400, "TypeError", f"{argument} is {type(names).__name__}, but should be a list of names"
        )
    # Some clients send back the bytes that /counters gave them.
    found = [name.decode(errors="replace") if isinstance(name, bytes) else name for name in names]
    if not all(isinstance(name, str) for name in found):
        raise RpcError(400, "TypeError", f"{argument} should hold nothing but text")
    return found


def _value(view: View, name: str) -> int | None:
    """0 for a counter that does not exist, None for one whose value is not known or fell."""
    count = (view.counts or {}).get(name)
    if count is None:
        return 0
    return None if count.suspect else count.value
