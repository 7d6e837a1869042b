"""Whether the process runs, and whether what it answers can be believed."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from counters.api.latest import LatestCounts


def router(latest: LatestCounts) -> APIRouter:
    """``/healthz`` for whoever restarts the process, ``/readyz`` for whoever sends it traffic."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def healthz() -> Response:
        """200 while the process runs. Never asks the store: a restart would not bring it back."""
        return _json(200, {"status": "ok"})

    @routes.get("/readyz")
    async def readyz() -> Response:
        """200 while the counts are current, else 503 with the reasons."""
        view = latest.view()
        reasons = [view.problem] if view.problem is not None else []
        return _json(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})

    return routes


def _json(status: int, body: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
