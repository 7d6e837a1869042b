"""The files the page loads."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from counters.api.bodies import Body

ASSETS = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "operations.js": "text/javascript",
    "charts.js": "text/javascript",
    "feed.js": "text/javascript",
    "format.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/uplot/uPlot.min.css": "text/css",
    "vendor/uplot/uPlot.iife.min.js": "text/javascript",
}
"""Nothing else of the directory is served."""


def router() -> APIRouter:
    """One route per file, each read and compressed once."""
    routes = APIRouter(include_in_schema=False)
    web = files("counters") / "web"

    def serve(name: str, media_type: str) -> None:
        body = Body.of((web / name).read_bytes(), media_type, effort=9)

        @routes.get(f"/web/{name}")
        async def asset(request: Request) -> Response:
            # Asked for again with every page, answered with 304: a new version is never mixed with an old.
            return body.answer(request, "no-cache")

    for name, media_type in ASSETS.items():
        serve(name, media_type)
    return routes
