"""The first page, with the numbers already in it: JavaScript only keeps them current."""

from __future__ import annotations

from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from fastapi import APIRouter, Response

from counters.api.latest import LatestCounts, View
from counters.objects.spec import Count

ASSETS = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""What the page loads, and nothing else of the directory is served."""

GAP = "\N{NARROW NO-BREAK SPACE}"
"""Groups digits where the reader's locale is unknown; the script regroups them."""

CARD = Template("""\
<li class="card" data-counter="$name"$state>
<h2>$title</h2>
<p class="value"><data value="$value">$shown</data></p>
<p class="error"><span class="dim">±</span> <span data-field="error">$error</span> \
<span class="dim">(<span data-field="percent">$percent</span>)</span></p>
<p class="note" data-field="reason">$reason</p>
<dl>
<div><dt>Messages read</dt><dd data-field="messages">$messages</dd></div>
<div hidden><dt>Per second</dt><dd data-field="rate">–</dd></div>
<div><dt>Last change</dt><dd data-field="updated">$updated</dd></div>
</dl>
</li>
""")

EMPTY = Template("""\
<li class="empty"><h2>No counters yet</h2>
<p>Publish objects to topics under <code>$prefix</code>; each becomes a number here.</p></li>
""")

STALE = "The store does not answer; these are the last numbers it gave."

UNREAD = """\
<li class="empty"><h2>The counts could not be read yet</h2>
<p>The store does not answer. The numbers appear here as soon as it does.</p></li>
"""


def router(latest: LatestCounts, topic_prefix: str) -> APIRouter:
    """``/`` and the files it loads. ``topic_prefix`` is named where there is nothing to show yet."""
    routes = APIRouter(include_in_schema=False)
    web = files("counters") / "web"
    page = Template((web / "index.html").read_text(encoding="utf-8"))

    @routes.get("/")
    async def index() -> Response:
        body = render(page, latest.view(), topic_prefix)
        return Response(body, headers={"cache-control": "no-cache"}, media_type="text/html")

    def serve(name: str, media_type: str) -> None:
        content = (web / name).read_bytes()

        @routes.get(f"/web/{name}")
        async def asset() -> Response:
            return Response(content, headers={"cache-control": "no-cache"}, media_type=media_type)

    for name, media_type in ASSETS.items():
        serve(name, media_type)
    return routes


def render(page: Template, view: View, topic_prefix: str) -> str:
    """The whole page; everything that is not of this file is escaped."""
    counts = list((view.counts or {}).values())
    # The largest first: it is what a reader looks for. Names decide between equals and unknowns.
    counts.sort(key=lambda count: (-(count.value or 0), count.name))
    if view.counts is None:
        cards = UNREAD
    elif not counts:
        cards = EMPTY.substitute(prefix=escape(topic_prefix))
    else:
        cards = "".join(map(_card, counts))
    return page.substitute(
        cards=cards,
        state="stale" if view.stale else "live",
        state_text="Stale" if view.stale else "Live",
        problem=STALE if view.stale and view.counts is not None else "",
        as_of=_time(view.as_of) if view.as_of else "never",
    )


def _card(count: Count) -> str:
    unreadable = count.value is None
    state = "suspect" if count.suspect else "unreadable" if unreadable else ""
    error = None if count.value is None else round(count.value * count.standard_error)
    return CARD.substitute(
        name=escape(count.name),
        title=escape(count.name.replace("_", " ")),
        state=f' data-state="{state}"' if state else "",
        value="" if count.value is None else count.value,
        shown=_group(count.value),
        error=_group(error),
        percent="" if unreadable else f"{count.standard_error * 100:.2f}{GAP}%",
        reason=escape(count.reason or ""),
        messages=_group(count.messages),
        updated="never" if count.updated_at is None else _time(count.updated_at),
    )


def _group(number: int | None) -> str:
    return "–" if number is None else f"{number:,}".replace(",", GAP)


def _time(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
