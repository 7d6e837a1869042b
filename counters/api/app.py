"""The HTTP server's routes, put together over one background read of the counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from counters.api import assets, health, legacy, metrics, operations, page, stream, v1
from counters.api.latest import LatestCounts, ReadsCounts
from counters.api.legacy_calls import Backend
from counters.api.past import LatestHistory
from counters.api.prepared import FastPath, PreparedCounts
from counters.api.problem import EveryResponse, on_http_error, on_invalid
from counters.api.server import BEFORE_DRAIN
from counters.api.stream import Feed
from counters.config import Settings

NOTHING = Backend()
"""Counts alone: no history, nothing that writes."""


def create_app(
    settings: Settings, reader: ReadsCounts, *, interval: float = 1.0, backend: Backend = NOTHING
) -> FastAPI:
    """The application; it reads from ``reader`` every ``interval`` seconds while it is up, and looks half as
    often for a new history.

    No endpoint blocks, and none but those of ``backend`` touches the store, so one process and one event loop
    are enough.
    """
    latest = LatestCounts(reader, interval)

    past = LatestHistory(backend.history, 2 * interval)
    prepared = PreparedCounts(latest)
    feed = Feed(latest, prepared)
    tasks = None if backend.operations is None else operations.TaskReads(backend.operations)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, object]]:
        async with AsyncExitStack() as stack:
            for reads in (latest, past):
                await asyncio.to_thread(reads.__enter__)
                stack.push_async_callback(asyncio.to_thread, reads.__exit__, None, None, None)
            feeding = asyncio.create_task(feed.run())
            stack.callback(feeding.cancel)
            yield {BEFORE_DRAIN: (feed.close,)}

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
    app.add_middleware(FastPath, prepared=prepared)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.router.routes.extend(legacy.routes(latest, past, settings.api, backend))
    app.include_router(v1.counts_router(latest))
    app.include_router(stream.router(feed))
    app.include_router(v1.history_router(latest, past))
    app.include_router(v1.refresh_router(past, backend.refresh, settings.api.token))
    app.include_router(operations.reading_router(tasks))
    app.include_router(operations.writing_router(tasks, settings.api.token))
    app.include_router(health.router(latest))
    snapshots = None if tasks is None else tasks.snapshots
    app.include_router(metrics.router(latest, snapshots, legacy=settings.exporter.legacy_family))
    app.include_router(page.router(latest, past, settings.journal.prefix))
    app.include_router(assets.router())
    return app
