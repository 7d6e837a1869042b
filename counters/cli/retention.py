"""``counters checkpoints prune`` and ``forget-node``: what is old and needed no more."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import click

from counters.checkpoints.nodes import forget_node as forget
from counters.checkpoints.receipts import Receipts
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.retention import BUDGET, KINDS, Retention
from counters.checkpoints.veto import Answer
from counters.config import Settings
from counters.redis import connect
from journal_client.config import JournalSettings
from journal_client.letters import open_letters

PAGE = 1_000
"""Letters read at a time."""


@click.command()
@click.option(
    "--only", type=click.Choice(KINDS), multiple=True, help="Only this kind; may be given several times."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--budget", type=click.IntRange(min=1), default=BUDGET, show_default=True, help="Deletions, at most."
)
@click.pass_obj
def prune(settings: Settings, only: tuple[str, ...], dry_run: bool, budget: int) -> int:
    """Delete receipts, and rows of finished tasks, that are older than retention.receipts_days.

    Receipts stay while a node may still retry a batch from before, and while the quarantine holds their
    records: without its receipt, a record that is retried is counted twice. Exits with 1 if something may not
    be deleted now.
    """
    with connect(settings.redis) as redis:
        prefix = settings.redis.prefix
        receipts = Receipts(redis, prefix)
        window = timedelta(days=settings.retention.receipts_days)
        retention = Retention(RedisCheckpoints(redis, prefix), receipts, window)
        blocked = False
        if dry_run:
            for plan in retention.plan(only or None):
                blocked |= plan.verdict.answer is Answer.BLOCKED
                _say(
                    plan.kind,
                    f"{plan.deletable:,} from before {plan.cutoff:%Y-%m-%d %H:%M} UTC",
                    str(plan.verdict),
                )
            return int(blocked)
        _keep_those_in_quarantine(settings.journal, receipts)
        for pruned in retention.prune(only or None, budget):
            blocked |= pruned.verdict.answer is Answer.BLOCKED
            more = ", paused" if pruned.paused else ", budget_exhausted" if pruned.budget_exhausted else ""
            _say(pruned.kind, f"{pruned.deleted:,} deleted{more}", str(pruned.verdict))
    return int(blocked)


@click.command("forget-node")
@click.argument("node")
@click.pass_obj
def forget_node(settings: Settings, node: str) -> None:
    """Remove the row of a node that will not come back, so that it keeps no receipts any more.

    If it does come back, what it had begun may be counted twice.
    """
    with connect(settings.redis) as redis:
        forget(RedisCheckpoints(redis, settings.redis.prefix), node)
    click.echo(f"node {node} is forgotten")


def _keep_those_in_quarantine(settings: JournalSettings, receipts: Receipts) -> None:
    if settings.quarantine.file is None and settings.quarantine.topic is None:
        return
    for ids in _pages(settings):
        receipts.keep(ids)


def _pages(settings: JournalSettings) -> Iterable[list[str]]:
    letters = open_letters(settings)
    cursor: dict[str, int] | None = {}
    while cursor is not None:
        page, after = letters.read(cursor, PAGE)
        cursor = None if after is None else dict(after)
        yield [letter.receipt for letter in page]


def _say(kind: str, what: str, verdict: str) -> None:
    click.echo(f"{kind:<9} {what} ({verdict})")
