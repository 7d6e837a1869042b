"""How the progress of a piece of work is told."""

from __future__ import annotations

import pytest

from counters.cli.progress import Amount, LineDisplay, Pace


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (Amount(0, None, 0), "listing records"),
        (Amount(0, None, 5_000), "5,000 records"),
        (Amount(0, 3_000, 0), "0 records (0 %)"),
        (Amount(1_200, 3_000, 1_200), "1,200 of 3,000 records"),
        (Amount(500_000, 1_000_000, 1_200), "1,200 records (50 %)"),
        (Amount(1_800, 3_000, 0), "0 records (60 %)"),
        (Amount(3_000, 3_000, 3_000), "3,000 of 3,000 records"),
        (Amount(0, 0, 0), "0 records (100 %)"),
        (Amount(4_000, 3_000, 7), "7 records (100 %)"),
        (Amount(-4_000, 3_000, 7), "7 records (0 %)"),
    ],
)
def test_an_amount_says_how_much_and_of_how_much(amount: Amount, words: str) -> None:
    assert Pace("records", Clock()).of(amount).split(", ")[0].replace("/s", "") == words


def test_rate_and_time_left_follow_from_what_was_done(clock: Clock) -> None:
    pace = Pace("records", clock)
    pace.of(Amount(0, 3_000, 0))
    clock.now = 2.0
    assert pace.of(Amount(1_200, 3_000, 1_200)) == "1,200 of 3,000 records, 600/s, 3 s left"


@pytest.mark.parametrize(
    ("total", "left"), [(1_100, "1 s"), (7_000, "1 min 0 s"), (372_000, "1 h 1 min"), (1_000, "")]
)
def test_time_left_is_told_in_two_units_at_most(total: int, left: str, clock: Clock) -> None:
    pace = Pace("records", clock)
    pace.of(Amount(0, total, 0))
    clock.now = 10.0
    assert pace.of(Amount(1_000, total, 1_000)).partition("/s")[2] == (f", {left} left" if left else "")


def test_what_an_earlier_run_did_does_not_make_this_one_faster(clock: Clock) -> None:
    pace = Pace("records", clock)
    pace.of(Amount(9_000, 10_000, 0))
    clock.now = 1.0
    assert pace.of(Amount(9_100, 10_000, 100)) == "100 records (91 %), 100/s, 9 s left"


def test_a_pause_does_not_make_it_slower_for_longer_than_a_minute(clock: Clock) -> None:
    pace = Pace("records", clock)
    pace.of(Amount(0, 10_000, 0))
    clock.now = 1.0
    pace.of(Amount(100, 10_000, 100))
    clock.now = 3_600.0
    pace.of(Amount(100, 10_000, 100))  # it goes on
    clock.now = 3_601.0
    assert pace.of(Amount(200, 10_000, 200)) == "200 of 10,000 records, 100/s, 1 min 38 s left"


def test_batches_that_take_longer_than_a_minute_have_a_rate(clock: Clock) -> None:
    pace = Pace("records", clock)
    for number in range(4):
        clock.now = 100.0 * number
        words = pace.of(Amount(number * 1_000, 10_000, number * 1_000))
    assert words == "3,000 of 10,000 records, 10/s, 11 min 40 s left"


def test_lines_come_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr("time.monotonic", clock)
    show = LineDisplay().start("backfill:content", "records")
    for number in range(0, 1_001, 100):
        clock.now = number / 100  # one a second
        show(Amount(number, 1_000, number))
    done = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert done == [
        "backfill:content: 0 records (0 %)",
        "backfill:content: 500 of 1",
        "backfill:content: 1",
    ]
