"""``/metrics``: the published counts for Prometheus, from the last read and nothing else; and the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from counters.api.latest import LatestCounts, View
from counters.checkpoints.model import Checkpoint
from counters.checkpoints.snapshots import Snapshots
from counters.exporter import Reading, expose

_FORMATS = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}


def router(latest: LatestCounts, tasks: Snapshots | None = None, *, legacy: bool = False) -> APIRouter:
    """``/metrics``, with and without the slash existing scrape jobs use.

    With ``legacy``, or asked with ``?legacy=1``, the family of swh-counters is there as well.
    """
    routes = APIRouter(tags=["metrics"])

    @routes.get("/metrics", response_class=Response, responses={200: {"content": _FORMATS}})
    @routes.get("/metrics/", include_in_schema=False)
    async def exposition(request: Request) -> Response:
        """The Prometheus or OpenMetrics text format, whichever ``Accept`` asks for."""
        wanted = legacy or request.query_params.get("legacy") == "1"
        view = latest.view()
        # A store that hangs is known by its counts already, and delays no answer.
        found = None if tasks is None or view.stale else await tasks.exported_soon()
        return expose(_reading(view, found), request.headers.get("accept", ""), legacy=wanted)

    return routes


def _reading(view: View, tasks: Sequence[Checkpoint] | None) -> Reading:
    counts = view.counts or {}
    return Reading(
        counts=None if view.stale else list(counts.values()),
        age=None if view.counts is None else view.age,
        errors=view.errors,
        problem=view.problem,
        tasks=tasks,
    )
