"""``/api/v1``: the published counts and their history as JSON, CSV and pictures.

Reading is open to everybody. Counts that are known are answered by ``prepared`` before these routes are
reached; theirs are the description and the errors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response, Security
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import SecretStr, TypeAdapter

from counters.api.badge import badge
from counters.api.bodies import Body, CountsBody, SingleCountBody, counts_tag, known, no_counter, tagged
from counters.api.latest import LatestCounts
from counters.api.past import HistoryAnswers, HistoryBody, LatestHistory, Method, Question, selected, tag
from counters.api.prepared import CACHING
from counters.api.security import check_token
from counters.api.tables import counts_table, history_table
from counters.errors import CountersError
from counters.history.refresh import RefreshBusy

DEFAULT_POINTS, MOST_POINTS = 1_000, 20_000
"""Points per series: what a chart can show, and what is enough for 20 years of 12 hours."""

HISTORY_CACHING = "public, max-age=60"
BADGE_CACHING = "public, max-age=60"


@dataclass(frozen=True, slots=True)
class ProblemBody:
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def answers(media_type: str, *problems: int, cached: bool = True) -> dict[int | str, dict[str, Any]]:
    """The description of a route: what it answers with 200, and the statuses of its problem documents. With
    ``cached`` a client that has the answer already is told so."""
    schema = TypeAdapter(ProblemBody).json_schema()
    described: dict[int | str, dict[str, Any]] = {
        status: {"content": {"application/problem+json": {"schema": schema}}, "description": _MEANING[status]}
        for status in problems
    }
    if media_type != JSON:
        described[200] = {"content": {media_type: {"schema": {"type": "string"}}}}
    if cached:
        described[304] = {"description": "The client has it already (`If-None-Match`)"}
    return described


WITH_TOKEN = Security(HTTPBearer(scheme_name="token", auto_error=False))
"""Describes a route that changes something; ``check_token`` is what guards it."""

JSON = "application/json"
TABLE = "text/csv; charset=utf-8; header=present"

_MEANING = {
    401: "The token is missing or wrong",
    403: "No token is configured, hence nobody may do this",
    404: "There is no such counter, task or history",
    409: "It is being done already, or by another",
    422: "A parameter is not what it should be",
    502: "The source of the history does not answer, or not completely; the last good history stays",
    503: "Nothing could be read yet",
}

Moment = Annotated[
    str | None,
    Query(max_length=40, description="ISO 8601 (UTC unless it says otherwise) or Unix seconds since 1973"),
]
Types = Annotated[
    str | None, Query(max_length=4_000, description="Counters, separated by commas; all if it is left out")
]
MaxPoints = Annotated[int, Query(ge=2, le=MOST_POINTS, description="Points per counter at most")]
Label = Annotated[str | None, Query(min_length=1, max_length=60, description="Instead of the name")]
How = Annotated[
    Method, Query(description="`lttb` keeps the shape of the curve, `minmax` the extremes of each stretch")
]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The parameters of a question about the history, as they come."""

    types: str | None
    start: str | None
    end: str | None
    max_points: int | None
    method: Method


def counts_router(latest: LatestCounts) -> APIRouter:
    """What is now."""
    routes = APIRouter(prefix="/api/v1", tags=["counts"])

    @routes.get("/counts", response_model=CountsBody, responses=answers(JSON, 503))
    async def counts() -> Response:
        """Every counter. The last known counts are kept while the store is down, and marked `stale`."""
        known(latest.view())
        raise HTTPException(404)  # not reached: what is known is answered before

    @routes.get("/counts/{type}", response_model=SingleCountBody, responses=answers(JSON, 404, 422, 503))
    async def count(type: str) -> Response:
        """One counter."""
        known(latest.view())
        raise no_counter(type)

    @routes.get("/counts.csv", response_class=Response, responses=answers("text/csv", 503))
    async def table(request: Request) -> Response:
        """Every counter as a table."""
        view = latest.view()
        counters, _ = known(view)
        etag = counts_tag(counters.values(), view.stale)
        return Body.of(counts_table(view), TABLE, etag=etag).answer(request, CACHING)

    @routes.get(
        "/badge/{type}.svg", response_class=Response, responses=answers("image/svg+xml", 404, 422, 503)
    )
    async def picture(
        request: Request,
        type: str,
        label: Annotated[
            str | None, Query(min_length=1, max_length=60, description="Instead of the name")
        ] = None,
    ) -> Response:
        """One counter as a small picture."""
        view = latest.view()
        counters, _ = known(view)
        if type not in counters:
            raise no_counter(type)
        picture = badge(counters[type], label, stale=view.stale)
        return Body.of(picture, "image/svg+xml").answer(request, BADGE_CACHING)

    return routes


def history_router(latest: LatestCounts, past: LatestHistory) -> APIRouter:
    """What was."""
    routes = APIRouter(prefix="/api/v1", tags=["history"])
    made = HistoryAnswers()

    def asked(query: HistoryQuery) -> Question:
        start, end = _moment("from", query.start), _moment("to", query.end)
        if start is not None and end is not None and start > end:
            raise HTTPException(422, f"from ({query.start}) is later than to ({query.end})")
        return Question(_types(query.types, latest, past), start, end, query.max_points, query.method)

    @routes.get("/history", response_model=HistoryBody, responses=answers(JSON, 404, 422, 503))
    async def history(
        request: Request,
        types: Types = None,
        start: Annotated[Moment, Query(alias="from")] = None,
        end: Annotated[Moment, Query(alias="to")] = None,
        max_points: MaxPoints = DEFAULT_POINTS,
        method: How = "lttb",
    ) -> Response:
        """Past values of counters. Gaps stay gaps: nothing is invented where nothing was measured."""
        question = asked(HistoryQuery(types, start, end, max_points, method))
        body = await made.json(past.history, question)
        return body.answer(request, HISTORY_CACHING)

    @routes.get("/history.csv", response_class=Response, responses=answers("text/csv", 404, 422, 503))
    async def table(
        request: Request,
        types: Types = None,
        start: Annotated[Moment, Query(alias="from")] = None,
        end: Annotated[Moment, Query(alias="to")] = None,
        max_points: MaxPoints | None = None,
        method: How = "lttb",
    ) -> Response:
        """Past values of counters as a table, every point unless `max_points` says otherwise."""
        known, question = past.history, asked(HistoryQuery(types, start, end, max_points, method))
        headers = {"cache-control": HISTORY_CACHING, "etag": tag(known, question)}
        if tagged(request.headers.get("if-none-match", ""), headers["etag"]):
            return Response(status_code=304, headers=headers)
        lines = history_table(selected(known, question))
        return StreamingResponse(lines, headers=headers, media_type=TABLE)

    return routes


def refresh_router(
    past: LatestHistory, refresh: Callable[[], str | None] | None, token: SecretStr | None
) -> APIRouter:
    """What changes something: only with the token."""
    routes = APIRouter(prefix="/api/v1", tags=["history"])

    @routes.post(
        "/history/refresh",
        status_code=204,
        response_class=Response,
        responses=answers(JSON, 401, 403, 404, 409, 502, cached=False),
        dependencies=[WITH_TOKEN],
    )
    async def refresh_history(request: Request) -> Response:
        """Rebuild the history now, for all replicas."""
        check_token(request, token)
        if refresh is None:
            raise HTTPException(404, "this server has no history to refresh")
        try:
            problem = await asyncio.to_thread(refresh)
        except RefreshBusy as error:
            raise HTTPException(409, f"{error}; try again when it is done", {"retry-after": "1"}) from error
        except CountersError as error:
            problem = str(error)
        if problem is not None:
            raise HTTPException(502, problem)
        past.look_soon()
        return Response(status_code=204)

    return routes


def _types(types: str | None, latest: LatestCounts, past: LatestHistory) -> tuple[str, ...]:
    """The counters that are meant, each once; those of the history and those of now exist."""
    history, counts = past.history, latest.view().counts
    if history is None and counts is None:
        raise HTTPException(503, "nothing could be read yet; /readyz says why", {"retry-after": "1"})
    existing = sorted({*(history.series if history else ()), *(counts or ())})
    if types is None:
        return tuple(existing)
    names = tuple(dict.fromkeys(name for name in map(str.strip, types.split(",")) if name))
    for name in names:
        if name not in existing:
            raise no_counter(name)
    return names


def _moment(parameter: str, text: str | None) -> int | None:
    """Unix seconds, or a date as people write it."""
    if text is None:
        return None
    try:
        return int(float(text) if _SECONDS.fullmatch(text) else _date(text).timestamp())
    except (ValueError, OverflowError) as error:
        raise HTTPException(
            422, f"{parameter} is {text!r}, neither a date (2026-11-30T21:00Z) nor Unix seconds"
        ) from error


def _date(text: str) -> datetime:
    if _YEAR_OR_MONTH.fullmatch(text):
        text = f"{text}-01-01"[:10]
    # '+' in a query that was not escaped arrives as a space.
    moment = datetime.fromisoformat(re.sub(r"(T\S*) (\d\d:?\d\d)$", r"\1+\2", text))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_SECONDS = re.compile(r"\d{9,11}(\.\d*)?")
"""Unix seconds from 1973 on; fewer digits are a year (2026) or a date in the basic format (20261130)."""

_YEAR_OR_MONTH = re.compile(r"\d{4}(-\d\d)?")
"""What ISO 8601 allows to leave out; it means the beginning."""
