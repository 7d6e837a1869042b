"""``/api/v1``: the published counts as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response

from counters.api.latest import LatestCounts, View
from counters.objects.spec import Count


@dataclass(frozen=True, slots=True)
class CountBody:
    """One counter. ``lower`` and ``upper`` are two standard errors away (about 95 % confidence).

    ``value``, its error and its bounds are null where the counter could not be read; ``reason`` says why.
    """

    value: int | None
    standard_error: float | None
    lower: int | None
    upper: int | None
    updated_at: datetime | None
    as_of: datetime
    suspect: bool
    messages: int | None
    reason: str | None

    @classmethod
    def of(cls, count: Count) -> CountBody:
        """The public form of ``count``."""
        return cls(
            value=count.value,
            standard_error=None if count.value is None else count.standard_error,
            lower=count.lower,
            upper=count.upper,
            updated_at=count.updated_at,
            as_of=count.as_of,
            suspect=count.suspect,
            messages=count.messages,
            reason=count.reason,
        )


@dataclass(frozen=True, slots=True)
class CountsBody:
    """All counters by name. ``age_seconds`` is the time since the read; ``stale``: it should be less."""

    as_of: datetime
    age_seconds: int
    stale: bool
    counts: dict[str, CountBody]


@dataclass(frozen=True, slots=True)
class ProblemBody:
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def router(latest: LatestCounts) -> APIRouter:
    """The routes over ``latest``."""
    routes = APIRouter(prefix="/api/v1", tags=["counts"])

    @routes.get("/counts", responses={200: {"model": CountsBody}, 503: {"model": ProblemBody}})
    async def counts(request: Request) -> Response:
        """Every counter. The last known counts are kept while the store is down, and marked ``stale``."""
        view = latest.view()
        known, as_of = _known(view)
        body = CountsBody(
            as_of, int(view.age), view.stale, {name: CountBody.of(count) for name, count in known.items()}
        )
        return _json(request, view, body)

    @routes.get(
        "/counts/{name}",
        responses={200: {"model": CountBody}, 404: {"model": ProblemBody}, 503: {"model": ProblemBody}},
    )
    async def count(request: Request, name: str) -> Response:
        """One counter."""
        view = latest.view()
        known, _ = _known(view)
        if name not in known:
            raise HTTPException(404, f"there is no counter {name!r}; /api/v1/counts lists them")
        return _json(request, view, CountBody.of(known[name]))

    return routes


def _known(view: View) -> tuple[dict[str, Count], datetime]:
    if view.counts is None or view.as_of is None:
        # Why is for operators: it may name addresses of the store.
        raise HTTPException(503, "the counts could not be read yet; /readyz says why", {"retry-after": "1"})
    return view.counts, view.as_of


def _json(request: Request, view: View, body: object) -> Response:
    """Fresh for a second, so that a cache in front of many viewers asks once per second; then revalidated."""
    # Weak: the age in a body moves on while the counts in it are the same. A stale view is never read
    # again, hence its age is part of the tag.
    stale = f"-stale-{view.age:.0f}" if view.stale else ""
    etag = f'W/"{view.read_at:.6f}{stale}"'
    headers = {"cache-control": "public, max-age=1", "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
