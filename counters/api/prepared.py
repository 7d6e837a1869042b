"""The counts as bytes, made once per read and sent before anything is routed.

Most requests ask for the same few bodies, so the work per request is a look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from counters.api.bodies import CountBody, CountsBody, SingleCountBody, counts_tag, tagged
from counters.api.latest import LatestCounts, View
from counters.api.problem import CORS_HEADERS, SECURITY_HEADERS

COUNTS = "/api/v1/counts"

CACHING = "public, max-age=1"
"""Fresh for a second, so that a cache in front of many viewers asks once per second; then revalidated."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All answers about one view of the counts.

    Attributes:
        key: another one means another view.
        bodies: JSON by path.
        etags: the tag of each; see :func:`~counters.api.bodies.counts_tag`.
    """

    key: tuple[float, bool, int]
    bodies: Mapping[str, bytes]
    etags: Mapping[str, str]

    @property
    def etag(self) -> str:
        """The tag of all counts together."""
        return self.etags[COUNTS]


class PreparedCounts:
    """Makes the answers when somebody asks for the first time after a read."""

    def __init__(self, latest: LatestCounts) -> None:
        self._latest = latest
        self._prepared = Prepared((0.0, True, 0), {}, {})

    def current(self) -> Prepared:
        """The answers about what is known now; none before the first successful read."""
        view = self._latest.view()
        # The age is in the bodies; of a view that is not read again it is all that changes.
        key = (view.read_at, view.stale, int(view.age))
        if key != self._prepared.key:
            self._prepared = _prepare(view, key)
        return self._prepared


class FastPath:
    """Outermost layer: answers what is prepared and passes on the rest."""

    def __init__(self, app: ASGIApp, prepared: PreparedCounts) -> None:
        self._app = app
        self._prepared = prepared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            path: str = scope["path"]
            if path.startswith(COUNTS):
                prepared = self._prepared.current()
                body = prepared.bodies.get(path)
                if body is not None:
                    await self._answer(scope, send, prepared.etags[path], body)
                    return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, send: Send, etag: str, body: bytes) -> None:
        headers = _headers(etag)
        condition = b",".join(value for name, value in scope["headers"] if name == b"if-none-match")
        if condition and tagged(condition.decode("latin-1"), etag):
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send({"type": "http.response.body"})
            return
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


_ALWAYS = [
    (name.encode(), value.encode())
    for name, value in {**SECURITY_HEADERS, **CORS_HEADERS, "cache-control": CACHING}.items()
]


def _headers(etag: str) -> list[tuple[bytes, bytes]]:
    return [*_ALWAYS, (b"etag", etag.encode())]


def _prepare(view: View, key: tuple[float, bool, int]) -> Prepared:
    if view.counts is None or view.as_of is None:
        return Prepared(key, {}, {})
    counts = {name: CountBody.of(count) for name, count in view.counts.items()}
    bodies = {COUNTS: msgspec.json.encode(CountsBody(view.as_of, int(view.age), view.stale, counts))}
    etags = {COUNTS: counts_tag(view.counts.values(), view.stale)}
    for name, count in view.counts.items():
        path = f"{COUNTS}/{name}"
        bodies[path] = msgspec.json.encode(SingleCountBody.within(view, count))
        etags[path] = counts_tag([count], view.stale)
    return Prepared(key, bodies, etags)
