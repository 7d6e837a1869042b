"""The operations tab as an operator meets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, Page, until
from front_page import CONTENT
from published import PREFIX, numbered, publish
from pydantic import SecretStr
from redis import Redis
from serving import SETTINGS, served

from counters.checkpoints.model import Advance
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import ApiSettings

TOKEN = "correct horse"
GUARDED = SETTINGS.model_copy(update={"api": ApiSettings(token=SecretStr(TOKEN))})
AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
BACKFILL, DAMAGED = "backfill:content", "verify:person"
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"
ROWS = "[...document.querySelectorAll('#tasks tbody tr')]"


@pytest.fixture
def store(redis_client: Redis) -> RedisCheckpoints:
    """A task that runs, one that is paused, positions in the journal, and a row that cannot be read."""
    publish(redis_client, CONTENT, numbered(100))
    store = RedisCheckpoints(redis_client, PREFIX)
    counts = {"examined": 4_300_000, "note": HOSTILE}
    store.apply(Advance(BACKFILL, {"done": 43, "total": 100}, counts, runner="worker-1.example.org/17"))
    store.put("sweep:all", None, {}, HOSTILE)
    store.pause("rebuild:revision")
    redis_client.hset(f"{{{PREFIX}}}:offsets:readers", "journal.objects.content", 5)
    redis_client.hset(f"{{{PREFIX}}}:checkpoints", DAMAGED, b"junk")
    return store


@pytest.fixture
def operations(store: RedisCheckpoints, redis_url: str) -> Iterator[str]:
    """The address of the tab, on a server with a token."""
    with served(redis_url, settings=GUARDED) as client:
        yield f"{str(client.base_url).rstrip('/')}/#operations"


def opened(page: Page, address: str) -> None:
    page.open(address)
    page.wait_for(f"{ROWS}.length > 0")


def row(name: str) -> str:
    """The row of a task, as an expression."""
    return f"{ROWS}.find(row => row.querySelector('a').textContent === {name!r})"


def field(page: Page, name: str, what: str) -> str:
    return str(page.evaluate(f"""{row(name)}.querySelector('[data-field="{what}"]').textContent"""))


def click(page: Page, name: str) -> None:
    page.evaluate(f"{row(name)}.querySelector('button').click()")


def enter(page: Page) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter")


def give_token(page: Page, token: str) -> None:
    page.wait_for("document.getElementById('token-dialog').open")
    page.evaluate(f"document.getElementById('token').value = {token!r}")
    enter(page)  # the field has the keyboard


def test_every_task_says_how_it_is(operations: str, page: Page) -> None:
    opened(page, operations)
    names = page.evaluate(f"{ROWS}.map(row => row.querySelector('a').textContent)")
    assert names == [BACKFILL, "journal:readers", "rebuild:revision", "sweep:all", DAMAGED]
    assert (field(page, BACKFILL, "state"), field(page, BACKFILL, "done")) == ("running", "43%")
    assert field(page, BACKFILL, "counts") == f"examined 4,300,000 · note {HOSTILE}"
    assert field(page, BACKFILL, "runner") == "worker-1.example.org/17"
    assert field(page, BACKFILL, "heartbeat").endswith(" ago")
    assert page.evaluate(f"{row(BACKFILL)}.querySelector('progress').value") == 0.43
    buttons = f"{ROWS}.map(row => row.querySelector('button')).map(b => b.hidden ? '' : b.textContent)"
    assert page.evaluate(buttons) == ["Pause", "", "Resume", "Pause", ""]


def test_nothing_a_task_says_becomes_part_of_the_page(operations: str, page: Page) -> None:
    opened(page, operations)
    assert page.evaluate("document.querySelectorAll('#tasks img, #tasks b').length") == 0
    assert page.complaints() == []


def test_without_tasks_the_tab_says_so(redis_client: Redis, redis_url: str, page: Page) -> None:
    with served(redis_url) as client:
        page.open(f"{str(client.base_url).rstrip('/')}/#operations")
        page.wait_for("!document.getElementById('no-tasks').hidden")
        assert page.evaluate("document.getElementById('tasks').hidden")


def test_the_tabs_are_changed_with_the_keyboard(operations: str, page: Page) -> None:
    page.open(operations.partition("#")[0])
    assert page.evaluate("document.getElementById('operations-view').hidden")
    page.evaluate("""document.querySelector('nav [href="#operations"]').focus()""")
    enter(page)
    page.wait_for("document.getElementById('counts-view').hidden")
    current = "[...document.querySelectorAll('nav [aria-current]')].map(a => a.textContent).join()"
    assert page.evaluate(current) == "Operations"
    page.evaluate("history.back()")
    page.wait_for("document.getElementById('operations-view').hidden")


def test_a_task_is_paused_and_resumed_with_the_token_asked_for_once(
    operations: str, page: Page, store: RedisCheckpoints
) -> None:
    opened(page, operations)
    click(page, BACKFILL)
    give_token(page, TOKEN)
    until(lambda: store.paused(BACKFILL), "it is not paused")
    page.wait_for(f"{row(BACKFILL)}.querySelector('button').textContent === 'Resume'")
    assert page.text("#announcements") == f"{BACKFILL}: paused"
    click(page, BACKFILL)
    until(lambda: not store.paused(BACKFILL), "it is not resumed")
    page.wait_for(f"{row(BACKFILL)}.querySelector('button').textContent === 'Pause'")
    assert not page.evaluate("document.getElementById('token-dialog').open")


def test_a_wrong_token_is_said_and_asked_for_again(
    operations: str, page: Page, store: RedisCheckpoints
) -> None:
    opened(page, operations)
    click(page, BACKFILL)
    give_token(page, "wrong")
    page.wait_for("document.getElementById('action-problem').textContent.includes('api.token')")
    assert not store.paused(BACKFILL)
    click(page, BACKFILL)
    give_token(page, TOKEN)
    until(lambda: store.paused(BACKFILL), "it is not paused")
    page.wait_for("document.getElementById('action-problem').textContent === ''")


def test_who_would_rather_not_changes_nothing(operations: str, page: Page, store: RedisCheckpoints) -> None:
    opened(page, operations)
    click(page, BACKFILL)
    page.wait_for("document.getElementById('token-dialog').open")
    page.evaluate("document.getElementById('token-cancel').click()")
    page.wait_for("!document.getElementById('token-dialog').open")
    assert page.evaluate("sessionStorage.length") == 0
    assert not store.paused(BACKFILL)


def test_the_tab_follows_and_leaves_the_keyboard_where_it_is(
    operations: str, page: Page, store: RedisCheckpoints
) -> None:
    opened(page, operations)
    page.evaluate(f"{row('rebuild:revision')}.querySelector('button').focus()")
    store.pause("backfill:a")
    store.delete(BACKFILL)
    page.wait_for(f"!!{row('backfill:a')} && !{row(BACKFILL)}")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "Resume rebuild:revision"


def test_nobody_asks_while_nobody_looks(operations: str, page: Page) -> None:
    page.begin_with("""(() => {
        window.asked = 0;
        const fetch = window.fetch;
        window.fetch = (...all) => {
            if (String(all[0]).startsWith("/api/v1/checkpoints")) window.asked += 1;
            return fetch(...all);
        };
        const later = window.setTimeout;
        window.setTimeout = (what, wait, ...all) => later(what, wait / 20, ...all);
    })()""")
    opened(page, operations)
    page.wait_for("window.asked > 2")
    page.evaluate("location.hash = '#counts'")
    page.wait_for("document.getElementById('operations-view').hidden")
    before = page.evaluate("window.asked")
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 8000)))")  # 0.4 seconds
    assert page.evaluate("window.asked") <= before
    page.evaluate("location.hash = '#operations'")
    page.wait_for(f"window.asked > {before}")


def test_a_server_that_is_gone_is_said(store: RedisCheckpoints, redis_url: str, page: Page) -> None:
    with served(redis_url) as client:
        opened(page, f"{str(client.base_url).rstrip('/')}/#operations")
    page.wait_for("document.getElementById('tasks-problem').textContent === 'The server does not answer.'")
    assert field(page, BACKFILL, "state") == "running"


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_nothing_sticks_out_at_any_width(
    operations: str, page: Page, store: RedisCheckpoints, width: int
) -> None:
    store.put("backfill:" + "x" * 190, None, {"y" * 150: 1}, "z" * 20)
    page.resize(width)
    opened(page, operations)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(operations: str, page: Page, scheme: str, width: int) -> None:
    page.resize(width)
    page.prefer(color_scheme=scheme)
    opened(page, operations)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = "axe.run().then(all => all.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`))"
    assert page.evaluate(found) == []
    click(page, BACKFILL)
    page.wait_for("document.getElementById('token-dialog').open")
    assert page.evaluate(found) == []


def test_the_chart_is_there_after_a_look_at_the_tasks(operations: str, browser: Browser) -> None:
    page = browser.page()
    page.resize(1280)
    opened(page, operations)
    page.evaluate("location.hash = '#counts'")
    page.wait_for("""document.querySelector('[data-counter="content"] .plot').clientWidth > 300""")
    assert page.complaints() == []
