"""Errors as ``application/problem+json`` (RFC 9457), and what every response carries."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""A response that sets one of them itself keeps its own."""

CORS_HEADERS = {"access-control-allow-origin": "*", "access-control-expose-headers": "etag, retry-after"}
"""On every answer of the API, also 304, 404 and 500: an error without them is hidden from the script that
asked."""

PREFLIGHT_HEADERS = {
    **CORS_HEADERS,
    "access-control-allow-methods": "GET, HEAD",
    "access-control-allow-headers": "if-none-match, last-event-id",
    "access-control-max-age": "86400",
}
"""Scripts of other sites may read. What changes something takes a token and is not for them."""

ASKED = "counters.asked"
"""Where the scope keeps the method that the client sent, for an answer that would not end by itself."""


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """One problem document; ``detail`` is for people and says what to do where that is known."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return Response(
        msgspec.json.encode(body),
        status,
        {"cache-control": "no-store", **(headers or {})},
        media_type="application/problem+json",
    )


async def on_http_error(request: Request, error: Exception) -> Response:
    """Also answers what the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:
        detail = f"{request.method} {request.url.path} is not served here"
    return problem(error.status_code, detail, dict(error.headers or {}))


async def on_invalid(request: Request, error: Exception) -> Response:
    """Answers parameters that are not what the description of the API says."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"][1:]))
    return problem(422, f"{where}: {first['msg']}")


class EveryResponse:
    """Outer layer: answers HEAD like GET, adds security and CORS headers, and turns a defect into a 500.

    A plain ASGI layer, because only one outside of the framework's also sees errors.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        of_api = scope["path"].startswith("/api/v1")

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if of_api:
                    headers.update(CORS_HEADERS)
            await send(message)

        if of_api and scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=PREFLIGHT_HEADERS)(scope, receive, send_with_headers)
            return

        # The server drops the body of an answer to HEAD by itself; it knows the method from its own scope.
        inner = {**scope, "method": "GET", ASKED: "HEAD"} if scope["method"] == "HEAD" else scope
        try:
            await self._app(inner, receive, send_with_headers)
        except Exception:
            logger.exception("%s %r failed", scope["method"], scope["path"])
            if started:
                raise
            response = problem(500, "the server made a mistake; it is in its log")
            await response(scope, receive, send_with_headers)
