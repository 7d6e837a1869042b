"""Where things are on the page, and when it is ready to be looked at."""

from __future__ import annotations

from chromium import Page

from counters.objects.spec import CounterSpec

CONTENT = CounterSpec("content", precision=16)
PLOT = '[data-counter="content"] .plot'
READING = '[data-counter="content"] .reading'
VALUE = '.card[data-counter="content"] data'


def number(page: Page) -> int:
    """How many contents the page has."""
    return int(page.evaluate(f"Number(document.querySelector('{VALUE}').value)"))


def readable(page: Page, state: str = "live") -> None:
    """Wait for the first event, after which moments are written as the reader writes them."""
    page.wait_for(f"document.getElementById('status').dataset.state === '{state}'")
    page.wait_for("!document.getElementById('as-of').textContent.includes('UTC')")


def charted(page: Page) -> None:
    """Wait for the chart of contents."""
    page.wait_for(
        f"document.querySelector('{PLOT} canvas') && document.querySelector('{READING}').textContent"
    )
