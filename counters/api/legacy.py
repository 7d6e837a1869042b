"""The HTTP contract of swh-counters, for its clients as they are.

Answers are never chunked and never without a body: those clients take a chunked body for a stream, and need a
content type. Errors are maps that they can raise; 503 is the only status after which they try again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from counters.api.latest import LatestCounts, View
from counters.api.legacy_calls import Backend, CountCalls, HistoryCalls, KeyCalls
from counters.api.past import LatestHistory
from counters.api.security import CHALLENGE, holds_token
from counters.api.swh_wire import RpcError, answer_kind, decode_arguments, encode, error_kind, try_again
from counters.config import Access, ApiSettings
from counters.errors import CountersError, StoreUnavailable
from journal_client.errors import Unavailable

logger = logging.getLogger(__name__)

GREETING = "SWH Counters API server"
"""What ``GET /`` answers to tools; health checks compare it."""

MAX_QUESTION = 1 << 20
"""Bytes a call may have that only asks."""


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC endpoint.

    Attributes:
        answer: called with the arguments by name.
        required: arguments that must be given; ``optional`` may be, others are refused.
        access: who may call it.
        setting: decides ``access``.
        limit: bytes its body may have.
    """

    answer: Callable[..., Awaitable[object]]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    access: Access = Access.OPEN
    setting: str = ""
    limit: int = MAX_QUESTION


def routes(
    latest: LatestCounts, past: LatestHistory, settings: ApiSettings, backend: Backend
) -> list[BaseRoute]:
    """The RPC endpoints and the history file."""
    legacy = settings.legacy
    counts = CountCalls(latest)
    history = HistoryCalls(past, backend.refresh, legacy)
    keys = KeyCalls(backend.writer, counts)
    calls = {
        "/check": Call(counts.check),
        "/count": Call(counts.count, ("collection",)),
        "/counts": Call(counts.counts, ("collections",)),
        "/counters": Call(counts.names),
        "/add": Call(
            keys.add,
            ("collection", "keys"),
            access=legacy.add,
            setting="api.legacy.add",
            limit=legacy.max_body,
        ),
        "/history": Call(history.content, ("cache_file",)),
        "/refresh_history": Call(
            history.refresh,
            ("cache_file",),
            ("objects", "static_file"),
            access=legacy.refresh_history,
            setting="api.legacy.refresh_history",
        ),
    }

    async def history_file(request: Request) -> Response:
        try:
            content = history.file(request.path_params["name"])
        except Exception as error:
            return refusal(error, request.headers.get("accept", ""))
        return Response(content, headers={"cache-control": "no-cache"}, media_type="application/json")

    return [
        *(Route(path, Endpoint(call, settings.token), name=path) for path, call in calls.items()),
        Route("/counters_history/{name:path}", history_file, methods=["GET"]),
    ]


def greeting(view: View) -> Response:
    """The answer of ``GET /`` to tools. Health checks ask here, hence 503 while the store does not answer."""
    headers = {"cache-control": "no-cache", "vary": "accept"}
    return Response(GREETING, 503 if view.stale else 200, headers, media_type="text/html")


class Endpoint:
    """One call as an ASGI application: no layer between the socket and the answer."""

    def __init__(self, call: Call, token: SecretStr | None) -> None:
        self._call = call
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        accept = headers.get(b"accept", "")
        try:
            self._admit(scope["method"], headers)
            body = await _read_body(receive, self._call.limit)
            arguments = decode_arguments(body, headers.get(b"content-type", ""))
            self._check(arguments)
            kind = answer_kind(accept)
            response = Response(encode(await self._call.answer(**arguments), kind), media_type=kind)
        except _Disconnected:
            return
        except Exception as error:
            response = refusal(error, accept)
        await response(scope, receive, send)

    def _admit(self, method: str, headers: Mapping[bytes, str]) -> None:
        access, setting = self._call.access, self._call.setting
        if method != "POST":
            raise RpcError(
                405, "RuntimeError", "this endpoint takes POST and nothing else", {"allow": "POST"}
            )
        if access is Access.OFF:
            raise RpcError(403, "PermissionError", f"this is off; set {setting} to token or open")
        if access is Access.TOKEN and not holds_token(headers.get(b"authorization", ""), self._token):
            raise RpcError(401, "PermissionError", "this needs the token in api.token", CHALLENGE)

    def _check(self, arguments: dict[str, Any]) -> None:
        required, optional = self._call.required, self._call.optional
        for name in required:
            if name not in arguments:
                raise RpcError(400, "TypeError", f"argument {name} is missing")
        for name in arguments:
            if name not in required and name not in optional:
                raise RpcError(400, "TypeError", f"there is no argument {name[:80]!r}")


def refusal(error: Exception, accept: str) -> Response:
    """The answer to a call that failed; nothing of a defect is told but that there is one."""
    if isinstance(error, Unavailable | StoreUnavailable):
        # Why is for operators: it may name addresses of the store.
        known = try_again("the store does not answer")
    elif isinstance(error, CountersError):
        known = RpcError(500, "RuntimeError", str(error))
    elif isinstance(error, RpcError):
        known = error
    else:
        logger.error("a call failed", exc_info=error)
        known = RpcError(500, "RuntimeError", "the server made a mistake; it is in its log")
    kind = error_kind(accept)
    headers = {"cache-control": "no-store", **known.headers}
    return Response(encode(known.body(), kind), known.status, headers, media_type=kind)


class _Disconnected(Exception):
    """Nobody waits for the answer any more."""


async def _read_body(receive: Receive, limit: int) -> bytes:
    """The body. One that is too large is read to its end and dropped, for clients that would not look for an
    answer before."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()
    if size > limit:
        raise RpcError(413, "ValueError", f"the body has {size} bytes, but may have {limit}")
    return b"".join(parts)
