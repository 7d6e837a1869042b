"""The HTTP server's routes, put together over one background read of the counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from counters.api import health, metrics, page, v1
from counters.api.latest import LatestCounts, ReadsCounts
from counters.api.problem import EveryResponse, on_http_error
from counters.config import Settings


def create_app(settings: Settings, reader: ReadsCounts, *, interval: float = 1.0) -> FastAPI:
    """The application; it reads from ``reader`` every ``interval`` seconds while it is up.

    No endpoint touches the store or blocks, so one process and one event loop are enough.
    """
    latest = LatestCounts(reader, interval)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(latest.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(latest.__exit__, None, None, None)

    app = FastAPI(
        title="counters",
        version=version("counters"),
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        # The viewers load their scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        # /metrics/ is a path of its own, and a redirect would hide a wrong one.
        redirect_slashes=False,
    )
    app.add_middleware(EveryResponse)
    app.add_exception_handler(HTTPException, on_http_error)
    app.include_router(v1.router(latest))
    app.include_router(health.router(latest))
    app.include_router(metrics.router(latest))
    app.include_router(page.router(latest, settings.journal.prefix))
    return app
