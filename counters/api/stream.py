"""``/api/v1/stream``: the counts as server-sent events, one for every change.

Every event carries all counts, so whoever misses one misses nothing: a client that reads slowly is sent the
newest when it has room, and neither a queue grows nor anybody else waits. The store is read as often for a
thousand clients as for one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from counters.api.latest import LatestCounts, View
from counters.api.prepared import COUNTS, PreparedCounts
from counters.api.problem import ASKED

HEARTBEAT_SECONDS = 15.0
"""Silence after which a sign of life is sent; proxies close what is silent for 30 to 60 seconds."""

LOOK_SECONDS = 1.0
"""How often a store that hangs is looked for; reads that end announce themselves."""

RETRY_MILLISECONDS = 2_000
"""When a client that was cut off comes back."""

HEADERS = {
    "cache-control": "no-store",
    # nginx would otherwise hold events back until its buffer is full
    "x-accel-buffering": "no",
}


class Feed:
    """The name of the last change, and a wake-up for everybody who waits for the next."""

    def __init__(
        self, latest: LatestCounts, prepared: PreparedCounts, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        self._latest = latest
        self._prepared = prepared
        self._heartbeat = heartbeat
        self._id: str | None = None
        self._shown: object = None
        self._changed = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """Publish changes until cancelled."""
        loop, read = asyncio.get_running_loop(), asyncio.Event()

        def announce() -> None:
            # The reading thread may outlive the loop by one read.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(read.set)

        with self._latest.following(announce):
            while True:
                self._publish(self._latest.view())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(read.wait(), LOOK_SECONDS)
                read.clear()

    def close(self) -> None:
        """End every stream; clients come back after their retry time, to whoever listens then."""
        self._closed = True
        self._wake()

    async def follow(self, last_id: str) -> AsyncIterator[bytes]:
        """The messages for one client: first the state now, or that it is still the one it has seen."""
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        if last_id and last_id == self._id:
            yield self._sign_of_life()
        while not self._closed:
            changed, newest = self._changed, self._id
            if newest is not None and newest != last_id:
                last_id = newest
                yield self._state(newest)
                continue
            try:
                await asyncio.wait_for(changed.wait(), self._heartbeat)
            except TimeoutError:
                yield self._sign_of_life()

    def _publish(self, view: View) -> None:
        if view.counts is None or view.as_of is None:
            return
        # Moments of reading pass without anything having happened.
        shown = (
            view.stale,
            [(one.name, one.value, one.messages, one.updated_at, one.suspect, one.reason)
             for one in view.counts.values()],
        )  # fmt: skip
        if shown == self._shown:
            return
        self._shown = shown
        self._id = self._prepared.current().etag.strip('W/"')
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _state(self, identity: str) -> bytes:
        # Not the bytes of the change: whoever comes later would be told an age that has passed.
        body = self._prepared.current().bodies[COUNTS]
        return b"id: %b\nevent: counts\ndata: %b\n\n" % (identity.encode(), body)

    def _sign_of_life(self) -> bytes:
        view = self._latest.view()
        state = msgspec.json.encode({"as_of": view.as_of, "age_seconds": int(view.age), "stale": view.stale})
        # The comment is for proxies, the event for readers who want to know that nothing changed.
        return b": heartbeat\nevent: unchanged\ndata: %b\n\n" % state


def router(feed: Feed) -> APIRouter:
    """The stream over ``feed``."""
    routes = APIRouter(prefix="/api/v1", tags=["counts"])

    @routes.get(
        "/stream",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def stream(request: Request) -> Response:
        """Server-sent events: `counts` with the body of `/api/v1/counts` now and at every change,
        `unchanged` with `as_of`, `age_seconds` and `stale` after 15 seconds without one."""
        if request.scope.get(ASKED) == "HEAD":
            return StreamingResponse(iter(()), headers=HEADERS, media_type="text/event-stream")
        seen = request.headers.get("last-event-id", "")
        return StreamingResponse(feed.follow(seen), headers=HEADERS, media_type="text/event-stream")

    return routes
