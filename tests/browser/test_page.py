"""The page as a reader meets it: with and without scripts, with eyes, a keyboard and a screen reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from chromium import Browser, Page, until
from front_page import CONTENT, PLOT, READING, VALUE, charted, number, readable
from published import numbered, publish
from redis import Redis
from serving import served

from counters.embedded import EmbeddedRedis
from counters.objects.spec import CounterSpec

DOCUMENTED = Path(__file__).parents[2] / "docs" / "api.md"
AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"


def test_numbers_are_written_as_the_reader_writes_them(address: str, page: Page) -> None:
    page.open(address)
    readable(page)
    page.wait_for(f"document.querySelector('{VALUE}').textContent === '{number(page):,}'")
    assert page.text('[data-counter="content"] [data-field="messages"]') == "123,456"


def test_readers_elsewhere_see_their_own_separators(address: str, page: Page) -> None:
    page.speak("de-DE")
    page.open(address)
    readable(page)
    page.wait_for(f"document.querySelector('{VALUE}').textContent === '{number(page):,}'.replace(',', '.')")
    assert page.text('[data-counter="content"] [data-field="messages"]') == "123.456"
    assert page.text('[data-counter="content"] [data-field="percent"]') == "0,41\N{NO-BREAK SPACE}%"


def test_numbers_follow_the_stream(address: str, page: Page, redis_client: Redis) -> None:
    page.open(address)
    before = number(page)
    publish(redis_client, CONTENT, numbered(10_000, first=1_000_000), messages=200_000)
    until(lambda: number(page) > before + 9_000, "the number stands still")
    page.wait_for(f"document.querySelector('{VALUE}').textContent === '{number(page):,}'")
    asked = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/v1/counts')).length"
    assert page.evaluate(asked) == 0  # nobody had to ask


def test_without_a_stream_the_page_asks(address: str, page: Page, redis_client: Redis) -> None:
    page.call("Network.setBlockedURLs", urls=["*/api/v1/stream"])
    page.open(address)
    before = number(page)
    publish(redis_client, CONTENT, numbered(10_000, first=1_000_000))
    until(lambda: number(page) > before + 9_000, "the number stands still")


def test_a_hidden_page_holds_no_stream(address: str, page: Page) -> None:
    page.open(address)
    page.evaluate("""(() => {
        window.steps = [];
        const close = EventSource.prototype.close;
        EventSource.prototype.close = function () { window.steps.push("closed"); close.call(this); };
        window.EventSource = class extends EventSource {
            constructor(...all) { super(...all); window.steps.push("opened"); }
        };
        window.hide = (hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        };
    })()""")
    page.evaluate("window.hide(true)")
    assert page.evaluate("window.steps.join()") == "closed"
    page.evaluate("window.hide(false)")
    assert page.evaluate("window.steps.join()") == "closed,opened"


def test_a_counter_that_appears_gets_a_card_and_a_row(address: str, page: Page, redis_client: Redis) -> None:
    page.open(address)
    publish(redis_client, CounterSpec("snapshot", precision=14), [b"a"])
    page.wait_for("""document.querySelector('.card[data-counter="snapshot"] data')?.textContent === '1'""")
    page.wait_for("""!!document.querySelector('tr[data-counter="snapshot"]')""")


def test_a_counter_that_cannot_be_read_says_so(address: str, page: Page) -> None:
    page.open(address)
    page.wait_for(
        """document.querySelector('.card[data-counter="release"]').dataset.state === 'unreadable'"""
    )
    assert "WRONGTYPE" in page.text('[data-counter="release"] [data-field="reason"]')


def test_numbers_of_a_store_that_is_down_are_shown_as_stale(
    own_redis: Callable[..., EmbeddedRedis], page: Page
) -> None:
    server = own_redis(data=True)
    with Redis.from_url(server.url) as redis:
        publish(redis, CONTENT, [b"a"])
    with served(server.url) as client:
        page.open(str(client.base_url))
        page.wait_for("document.getElementById('status').dataset.state === 'live'")
        server.kill()
        page.wait_for("document.getElementById('status').dataset.state === 'stale'")
        assert "these are the last numbers" in page.text("#problem")
        assert page.text(VALUE) == "1"
        server.restart()
        page.wait_for("document.getElementById('status').dataset.state === 'live'")


def test_growth_per_day_is_that_of_the_last_day(address: str, page: Page) -> None:
    page.open(address)
    page.wait_for("document.getElementById('status').dataset.state === 'live'")
    # the last point of the history is 10,940 a day ago
    shown = """document.querySelector('.card[data-counter="content"] [data-field="growth"]').textContent"""
    grown = page.wait_for(f"Number({shown}.replace(/[+,]/g, ''))")
    assert abs(grown - (number(page) - 10_940)) < 50


def test_a_range_is_chosen_and_seen(address: str, page: Page) -> None:
    page.open(address)
    charted(page)
    everything = page.text(READING)
    page.evaluate("""document.querySelector('[data-range="604800"]').click()""")
    page.wait_for(f"document.querySelector('{READING}').textContent !== {everything!r}")
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map(b => b.textContent).join()"
    assert page.evaluate(pressed) == "1w"


def test_a_stretch_that_is_pulled_over_is_zoomed_into_and_left_again(address: str, page: Page) -> None:
    page.open(address)
    charted(page)
    everything = page.text(READING)
    page.evaluate(f"document.querySelector('{PLOT}').scrollIntoView({{block: 'center'}})")
    box = page.evaluate(f"document.querySelector('{PLOT} .u-over').getBoundingClientRect().toJSON()")
    middle = box["y"] + box["height"] / 2
    page.drag((box["x"] + 200, middle), (box["x"] + 300, middle))
    page.wait_for("!document.getElementById('reset').hidden")
    page.wait_for(
        f"document.querySelector('{READING}').textContent.includes(' to ') || "
        f"document.querySelector('{READING}').textContent.includes(':')"
    )
    page.evaluate("document.getElementById('reset').click()")
    page.evaluate(f"document.querySelector('{PLOT}').dispatchEvent(new Event('blur'))")
    page.wait_for("document.getElementById('reset').hidden")
    until(lambda: page.text(READING).partition(" since ")[2] == everything.partition(" since ")[2], "zoomed")


def test_a_chart_is_read_and_zoomed_with_the_keyboard(address: str, page: Page) -> None:
    page.open(address)
    charted(page)
    page.evaluate(f"document.querySelector('{PLOT}').focus()")
    page.press("Home")
    first = page.evaluate(f"document.querySelector('{PLOT}').getAttribute('aria-valuetext')")
    assert first.endswith(": 0")
    page.press("ArrowRight")
    page.wait_for(f"document.querySelector('{PLOT}').getAttribute('aria-valuetext') !== {first!r}")
    page.press("+")
    page.wait_for("!document.getElementById('reset').hidden")
    page.press("Escape")
    page.wait_for("document.getElementById('reset').hidden")
    # nothing is pointed at any more
    page.wait_for(f"document.querySelector('{READING}').textContent.includes(' since ')")


@pytest.mark.parametrize(("path", "next_in_line"), [("", '[aria-pressed="true"]'), ("embed/content", PLOT)])
def test_who_leaves_the_zoom_with_the_keyboard_is_not_left_nowhere(
    address: str, page: Page, path: str, next_in_line: str
) -> None:
    page.open(address + path)
    charted(page)
    page.evaluate(f"document.querySelector('{PLOT}').focus()")
    page.press("+")
    page.wait_for("!document.getElementById('reset').hidden")
    page.evaluate("document.getElementById('reset').focus()")
    page.press(" ")
    page.wait_for("document.getElementById('reset').hidden")
    assert page.evaluate(f"document.activeElement === document.querySelector('{next_in_line}')")


@pytest.mark.parametrize("width", [390, 820, 1280, 1920])
def test_nothing_sticks_out_at_any_width(address: str, page: Page, width: int) -> None:
    page.resize(width)
    page.open(address)
    charted(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_without_scripts_numbers_and_table_are_there(address: str, page: Page) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(address)
    seen = page.rendered()
    for hidden in ("1d", "Per second", "Reset zoom"):
        assert hidden not in seen
    for shown in ("CONTENT", "All numbers as a table", "Growth per day", "UTC"):
        assert shown in seen


def test_who_wants_no_motion_sees_none(address: str, page: Page, redis_client: Redis) -> None:
    page.prefer(reduced_motion="reduce")
    page.open(address)
    page.wait_for("document.getElementById('status').dataset.state === 'live'")
    page.evaluate(f"""(() => {{
        window.texts = [];
        const shown = document.querySelector('{VALUE}');
        new MutationObserver(() => window.texts.push(shown.textContent))
            .observe(shown, {{ childList: true, characterData: true, subtree: true }});
    }})()""")
    before = number(page)
    publish(redis_client, CONTENT, numbered(10_000, first=1_000_000))
    until(lambda: number(page) > before + 9_000, "the number stands still")
    page.wait_for(f"document.querySelector('{VALUE}').textContent === '{number(page):,}'")
    assert page.evaluate("window.texts.length") < 10  # a movement would have been dozens


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "embed/content"])
def test_axe_finds_nothing(address: str, page: Page, path: str, scheme: str) -> None:
    page.prefer(color_scheme=scheme)
    page.open(address + path)
    charted(page)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "axe.run().then(all => all.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`))"
    )
    assert found == []


def test_a_screen_reader_is_not_told_every_number(address: str, page: Page, redis_client: Redis) -> None:
    page.open(address)
    page.evaluate("""(() => {
        window.told = 0;
        new MutationObserver(() => { window.told += 1; })
            .observe(document.getElementById('announcements'), { childList: true, subtree: true });
    })()""")
    before = number(page)
    publish(redis_client, CONTENT, numbered(10_000, first=1_000_000))
    until(lambda: number(page) > before + 9_000, "the number stands still")
    assert page.evaluate("window.told") == 0  # within the first minute
    assert page.evaluate("document.querySelectorAll('[aria-live], [role=status], [role=alert]').length") == 1


def test_the_embedded_page_follows_as_well(address: str, page: Page, redis_client: Redis) -> None:
    page.open(f"{address}embed/content")
    charted(page)
    before = number(page)
    publish(redis_client, CONTENT, numbered(10_000, first=1_000_000))
    until(lambda: number(page) > before + 9_000, "the number stands still")


def test_the_documented_frame_shows_all_of_the_embedded_page(address: str, page: Page) -> None:
    documented = re.search(r"<iframe.*?</iframe>", DOCUMENTED.read_text(encoding="utf-8"), re.DOTALL)
    assert documented
    page.call("Page.setBypassCSP", enabled=True)  # of the page around the frame, which is of another site
    page.open(f"{address}healthz")
    frame = documented[0].replace("https://counters.example.org/", address)
    page.evaluate(f"document.body.innerHTML = {frame!r}")
    inside = "document.querySelector('iframe').contentDocument"
    page.wait_for(f"!!{inside}.querySelector('canvas') && !!{inside}.querySelector('.reading').textContent")
    room = f"(({{scrollWidth, scrollHeight}}) => [scrollWidth, scrollHeight])({inside}.documentElement)"
    assert page.evaluate(room) == [420, 330]
    page.evaluate(f"{inside}.getElementById('reset').hidden = false")
    assert page.evaluate(room) == [420, 330]
    assert page.evaluate(f"{inside}.querySelector('.plot').clientHeight") >= 80


def test_the_page_is_light_and_quick_and_without_complaints(address: str, browser: Browser) -> None:
    page = browser.page()
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    page.open(address)
    charted(page)
    painted = page.wait_for("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    assert painted <= 500  # milliseconds
    assert page.transferred() <= 150 * 1024
    assert page.complaints() == []
