"""The page and its small form for other sites, with the numbers already in them: JavaScript only keeps them
current and draws the charts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from fastapi import APIRouter, Request, Response

from counters.api.bodies import Body, known, no_counter
from counters.api.growth import Growth, growth
from counters.api.latest import LatestCounts, View
from counters.api.legacy import greeting
from counters.api.past import LatestHistory
from counters.api.problem import SECURITY_HEADERS
from counters.api.swh_wire import prefers_page
from counters.history.store import History
from counters.objects.spec import Count

GAP = "\N{NARROW NO-BREAK SPACE}"
"""Groups digits where the reader's locale is unknown; the script regroups them."""

CARD = Template("""\
<li class="card" data-counter="$name"$state>
<$heading class="type">$title</$heading>
<p class="value"><data value="$value">$shown</data></p>
<p class="error"><span class="dim">±</span> <span data-field="error">$error</span> \
<span class="dim">(<span data-field="percent">$percent</span>)</span></p>
<p class="note" data-field="reason">$reason</p>
<figure><div class="plot" tabindex="0" role="slider" aria-label="History of $title" aria-valuemin="0" \
aria-valuemax="0" aria-valuenow="0" aria-valuetext="loading" aria-describedby="chart-help"></div>
<figcaption class="reading"></figcaption></figure>
<dl>
<div><dt>$growth_label</dt><dd data-field="growth"$growth_base>$growth</dd></div>
<div><dt>Messages read</dt><dd data-field="messages">$messages</dd></div>
<div class="scripted"><dt>Per second</dt><dd data-field="rate">–</dd></div>
<div><dt>Last change</dt><dd data-field="updated">$updated</dd></div>
</dl>
</li>
""")

ROW = Template("""\
<tr data-counter="$name"$state><th scope="row">$title</th><td><data value="$value">$shown</data></td>
<td><span data-field="error">$error</span> <span class="dim" data-field="percent">$percent</span></td>
<td data-field="between">$between</td><td data-field="growth"$growth_base>$growth</td>
<td data-field="messages">$messages</td><td data-field="updated">$updated</td></tr>
""")

EMPTY = Template("""\
<li class="empty"><h2>No counters yet</h2>
<p>Publish objects to topics under <code>$prefix</code>; each becomes a number here.</p></li>
""")

STALE = "The store does not answer; these are the last numbers it gave."

UNREAD = """\
<li class="empty" data-unread><h2>The counts could not be read yet</h2>
<p>The store does not answer. The numbers appear here as soon as it does.</p></li>
"""

EMBEDDABLE = {
    "content-security-policy": SECURITY_HEADERS["content-security-policy"].replace(
        "frame-ancestors 'none'", "frame-ancestors *"
    )
}


def router(latest: LatestCounts, past: LatestHistory, topic_prefix: str) -> APIRouter:
    """``/`` and ``/embed/<type>``. ``topic_prefix`` is named where there is nothing to show yet."""
    routes = APIRouter(include_in_schema=False)
    web = files("counters") / "web"
    page = Template((web / "index.html").read_text(encoding="utf-8"))
    embed = Template((web / "embed.html").read_text(encoding="utf-8"))
    made: dict[object, Body] = {}

    def current(view: View) -> Body:
        """The page, made once per read: compressing it takes longer than everything else."""
        history = past.history
        key = (view.read_at, view.stale, int(view.age), history and history.version)
        if key not in made:
            body = Body.of(render(page, view, history, topic_prefix).encode(), "text/html")
            made.clear()
            made[key] = body
        return made[key]

    @routes.get("/")
    async def index(request: Request) -> Response:
        view = latest.view()
        if not prefers_page(request.headers.get("accept", "")):
            return greeting(view)
        answer = current(view).answer(request, "no-cache")
        answer.headers["vary"] = "accept, accept-encoding"
        return answer

    @routes.get("/embed/{name}")
    async def widget(request: Request, name: str) -> Response:
        view = latest.view()
        counts, _ = known(view)
        if name not in counts:
            raise no_counter(name)
        body = Body.of(render_embed(embed, view, counts[name], past.history).encode(), "text/html")
        answer = body.answer(request, "no-cache")
        answer.headers.update(EMBEDDABLE)
        return answer

    return routes


def render(page: Template, view: View, history: History | None, topic_prefix: str) -> str:
    """The whole page; everything that is not of this file is escaped."""
    counts = sorted((view.counts or {}).values(), key=_largest_first)
    shown = [_fields(count, history) for count in counts]
    if view.counts is None:
        cards = UNREAD
    elif not counts:
        cards = EMPTY.substitute(prefix=escape(topic_prefix))
    else:
        cards = _each(CARD, shown)
    return page.substitute(
        _state(view),
        cards=cards,
        rows=_each(ROW, shown),
        table_hidden="" if counts else " hidden",
        problem=STALE if view.stale and view.counts is not None else "",
    )


def render_embed(page: Template, view: View, count: Count, history: History | None) -> str:
    """One counter alone."""
    fields = _fields(count, history, heading="h1")
    return page.substitute(
        _state(view), name=fields["name"], title=fields["title"], card=_each(CARD, [fields])
    )


def _largest_first(count: Count) -> tuple[int, str]:
    """The largest is what a reader looks for. Names decide between equals and unknowns."""
    return -(count.value or 0), count.name


def _each(template: Template, shown: Iterable[dict[str, object]]) -> str:
    return "".join(map(template.substitute, shown))


def _state(view: View) -> dict[str, str]:
    return {
        "state": "stale" if view.stale else "live",
        "state_text": "Stale" if view.stale else "Live",
        "as_of": _time(view.as_of) if view.as_of else "never",
    }


def _fields(count: Count, history: History | None, heading: str = "h2") -> dict[str, object]:
    """What card and table row show of ``count``, as HTML; ``heading`` is the element that names it."""
    unreadable = count.value is None
    state = "suspect" if count.suspect else "unreadable" if unreadable else ""
    grown = _grown(count, history)
    return {
        "name": escape(count.name),
        "title": escape(count.name.replace("_", " ")),
        "heading": heading,
        "state": f' data-state="{state}"' if state else "",
        "value": "" if count.value is None else count.value,
        "shown": _group(count.value),
        "error": _group(None if count.value is None else round(count.value * count.standard_error)),
        "percent": "" if unreadable else f"{count.standard_error * 100:.2f}{GAP}%",
        "between": "–" if unreadable else f"{_group(count.lower)} – {_group(count.upper)}",
        "reason": escape(count.reason or ""),
        "growth_label": "Growth per day" if grown is None or grown.per_day else "Growth so far",
        "growth_base": "" if grown is None else f' data-since="{grown.since}" data-base="{grown.base}"',
        "growth": "–" if grown is None else _change(grown.amount),
        "messages": _group(count.messages),
        "updated": "never" if count.updated_at is None else _time(count.updated_at),
    }


def _grown(count: Count, history: History | None) -> Growth | None:
    # A value that fell is being repaired: its difference to the past is no growth.
    if history is None or count.value is None or count.suspect:
        return None
    return growth(history.series.get(count.name), count.value, count.as_of.timestamp())


def _group(number: int | None) -> str:
    return "–" if number is None else f"{number:,}".replace(",", GAP)


def _change(number: int) -> str:
    return f"+{_group(number)}" if number > 0 else _group(number).replace("-", "\N{MINUS SIGN}")


def _time(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
