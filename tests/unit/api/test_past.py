"""Answers about the history are bounded in memory, and made one at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import numpy as np
import pytest

from counters.api import past
from counters.api.past import HistoryAnswers, Question
from counters.history.series import Series
from counters.history.store import History

HISTORY = History(
    {"content": Series(np.arange(0, 20_000, dtype=np.int64), np.arange(0, 20_000, dtype=np.float64))},
    refreshed_at=datetime(2026, 1, 1, tzinfo=UTC),
    stale=False,
    problem=None,
    version="1",
)


def question(start: int = 0) -> Question:
    return Question(("content",), start, None, 20_000, "lttb")


def test_answers_to_many_questions_take_no_more_memory_than_allowed() -> None:
    answers = HistoryAnswers(keep=1 << 20)

    async def ask() -> None:
        for start in range(20):
            await answers.json(HISTORY, question(start))

    asyncio.run(ask())
    assert 0 < answers.kept_bytes <= 1 << 20


def test_an_answer_that_is_larger_than_all_that_may_be_kept_is_still_given() -> None:
    answers = HistoryAnswers(keep=1_000)
    assert len(asyncio.run(answers.json(HISTORY, question())).content) > 1_000
    assert answers.kept_bytes == 0


def test_many_who_ask_the_same_have_it_made_once_and_different_ones_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most, made = 0, 0, 0
    real = past.selected

    def watched(history: History | None, asked: Question) -> object:
        nonlocal running, most, made
        running, made = running + 1, made + 1
        most = max(most, running)
        yield from real(history, asked)
        running -= 1

    monkeypatch.setattr(past, "selected", watched)
    answers = HistoryAnswers()

    async def ask() -> None:
        await asyncio.gather(*(answers.json(HISTORY, question(n % 3)) for n in range(12)))

    asyncio.run(ask())
    assert (made, most) == (3, 1)
