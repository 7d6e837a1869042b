"""``/metrics``: the published counts for Prometheus, from the last read and from nothing else."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from counters.api.latest import LatestCounts, View
from counters.exporter import Reading, expose

_FORMATS = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}


def router(latest: LatestCounts, *, legacy: bool = False) -> APIRouter:
    """``/metrics``, with and without the slash existing scrape jobs use.

    With ``legacy``, or asked with ``?legacy=1``, the family of swh-counters is there as well.
    """
    routes = APIRouter(tags=["metrics"])

    @routes.get("/metrics", response_class=Response, responses={200: {"content": _FORMATS}})
    @routes.get("/metrics/", include_in_schema=False)
    async def exposition(request: Request) -> Response:
        """The Prometheus or OpenMetrics text format, whichever ``Accept`` asks for."""
        wanted = legacy or request.query_params.get("legacy") == "1"
        return expose(_reading(latest.view()), request.headers.get("accept", ""), legacy=wanted)

    return routes


def _reading(view: View) -> Reading:
    counts = view.counts or {}
    return Reading(
        counts=None if view.stale else list(counts.values()),
        age=None if view.counts is None else view.age,
        errors=view.errors,
        problem=view.problem,
    )
