"""``counters quarantine``: records that were set aside are looked at, counted after all, or let go."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Message
from counting import STORE, expected, positions, stored
from redis import Redis

from counters.checkpoints.receipts import Receipts
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.cli import run
from journal_client.config import JournalSettings, QuarantineSettings
from journal_client.ledger import Skip
from journal_client.librdkafka import producer_config
from journal_client.quarantine import open_quarantine
from journal_client.serialization import encode_value

PRECISION = 14
TOPIC = "journal.revision"
NAMED = encode_value({"author": {"fullname": b"Ada Abara <ada@example.org>"}})


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Counters = Callable[..., Done]


@pytest.fixture(params=["file", "topic"])
def place(request: pytest.FixtureRequest, tmp_path: Path, journal_prefix: str) -> QuarantineSettings:
    if request.param == "file":
        return QuarantineSettings(file=tmp_path / "aside.jsonl")
    return QuarantineSettings(topic=f"{journal_prefix}-aside")


@pytest.fixture
def file(tmp_path: Path) -> QuarantineSettings:
    return QuarantineSettings(file=tmp_path / "aside.jsonl")


@pytest.fixture
def counters(
    redis_url: str, kafka_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Counters:
    """``counters(place, "quarantine", …)`` runs the command on the servers of this test."""
    variables = {
        "COUNTERS_REDIS__URL": redis_url,
        "COUNTERS_JOURNAL__BROKERS": kafka_server,
        "COUNTERS_JOURNAL__PREFIX": "journal",
        "COUNTERS_JOURNAL__GROUP_ID": "readers",
        "COUNTERS_OBJECTS__PRECISION": str(PRECISION),
        "COUNTERS_LOG_LEVEL": "error",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def call(place: QuarantineSettings | None, *arguments: str) -> Done:
        for kind in ("file", "topic"):
            value = getattr(place, kind, None)
            if value is not None:
                monkeypatch.setenv(f"COUNTERS_JOURNAL__QUARANTINE__{kind.upper()}", str(value))
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def set_aside(
    place: QuarantineSettings,
    kafka: str,
    *records: tuple[int, bytes | None, bytes],
    topic: str = TOPIC,
    at: int = 1_700_000_000_000,
) -> None:
    """Put records of offset, key and value where a worker would have."""
    settings = JournalSettings(brokers=kafka, quarantine=place)
    quarantine = open_quarantine(place, producer_config(settings))
    for offset, key, value in records:
        message = Message(topic=topic, partition=0, offset=offset, key=key, value=value, timestamp=(1, at))
        quarantine.put(message, Skip.NULL_KEY if key is None else Skip.UNDECODABLE, "Error: \x1b[31m[bold]no")
    quarantine.flush(20)
    quarantine.close()


def test_records_that_can_be_counted_now_are_counted_once(
    counters: Counters, place: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(place, kafka_server, (3, b"first", NAMED), (4, b"second", NAMED))
    for expected_lines in ("2 records counted\n", "0 records counted\n"):
        done = counters(place, "quarantine", "retry", "--all")
        assert (done.code, done.out) == (0, expected_lines)
        assert positions(redis_client, "readers") == {TOPIC: 2}
    assert (stored(redis_client, "revision", PRECISION) == expected([b"first", b"second"], PRECISION)).all()
    author = [b"Ada Abara <ada@example.org>"]
    assert (stored(redis_client, "person", PRECISION) == expected(author, PRECISION)).all()
    assert counters(place, "quarantine", "list").out == "nothing is set aside\n"


def test_what_still_cannot_be_counted_stays(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"good", NAMED), (4, b"bad", b"\xc1"), (5, None, NAMED))
    set_aside(file, kafka_server, (6, b"foreign", b""), topic="elsewhere.revision")
    done = counters(file, "quarantine", "retry", "--all")
    assert (done.code, done.out) == (1, "1 records counted, 3 still cannot be\n")
    assert positions(redis_client, "readers") == {TOPIC: 1}
    waiting = [
        json.loads(line)["id"] for line in counters(file, "quarantine", "list", "--json").out.splitlines()
    ]
    assert waiting == [f"{TOPIC}:0:4", f"{TOPIC}:0:5", "elsewhere.revision:0:6"]


def test_a_record_that_was_set_aside_twice_counts_once(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"key", NAMED), (3, b"key", NAMED))
    assert counters(file, "quarantine", "retry", "--all").out == "1 records counted\n"
    assert positions(redis_client, "readers") == {TOPIC: 1}


def test_a_record_of_a_topic_created_anew_is_another_one(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"old", NAMED))
    counters(file, "quarantine", "retry", "--all")
    set_aside(file, kafka_server, (3, b"new", NAMED), at=1_800_000_000_000)
    assert counters(file, "quarantine", "retry", "--all").out == "1 records counted\n"
    assert positions(redis_client, "readers") == {TOPIC: 2}


def test_one_record_is_retried_by_its_id(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"one", NAMED), (4, b"other", NAMED))
    assert counters(file, "quarantine", "retry", f"{TOPIC}:0:4").out == "1 records counted\n"
    assert (stored(redis_client, "revision", PRECISION) == expected([b"other"], PRECISION)).all()
    assert json.loads(counters(file, "quarantine", "list", "--json").out)["id"] == f"{TOPIC}:0:3"


def test_a_paused_retry_counts_nothing(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"one", NAMED))
    RedisCheckpoints(redis_client, STORE).pause("quarantine:retry")
    done = counters(file, "quarantine", "retry", "--all", "--no-wait")
    assert (done.code, done.out) == (0, "")
    assert "quarantine:retry is paused; counters checkpoints resume quarantine:retry" in done.err
    assert positions(redis_client, "readers") == {}


def test_dropped_records_are_neither_listed_nor_retried(
    counters: Counters, place: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(place, kafka_server, (3, b"one", NAMED), (4, b"other", NAMED))
    assert counters(place, "quarantine", "drop", f"{TOPIC}:0:3").out == "1 records dropped\n"
    assert json.loads(counters(place, "quarantine", "list", "--json").out)["id"] == f"{TOPIC}:0:4"
    assert counters(place, "quarantine", "drop", "--all").out == "1 records dropped\n"
    assert counters(place, "quarantine", "retry", "--all").out == "0 records counted\n"
    assert positions(redis_client, "readers") == {}
    assert len(counters(place, "quarantine", "list", "--handled", "--json").out.splitlines()) == 2


def test_the_list_shows_where_why_and_what_and_nothing_moves_the_terminal(
    counters: Counters, file: QuarantineSettings, kafka_server: str
) -> None:
    set_aside(file, kafka_server, (3, b"\x01\x02", NAMED))
    [_, line] = counters(file, "quarantine", "list").out.splitlines()
    assert f"{TOPIC}:0:3" in line
    for part in (
        "2023-11-14 22:13:20 UTC",
        "undecodable_value",
        "0102",
        "Error: \N{REPLACEMENT CHARACTER}[31m[bold]no",
    ):
        assert part in line
    assert "\x1b" not in line


def test_a_long_list_says_that_there_is_more(
    counters: Counters, file: QuarantineSettings, kafka_server: str
) -> None:
    set_aside(file, kafka_server, *((n, b"key", b"\xc1") for n in range(3)))
    done = counters(file, "quarantine", "list", "--limit", "2")
    assert (len(done.out.splitlines()), done.err) == (3, "there are more than 2; --limit shows them\n")


def test_one_record_is_shown_whole(counters: Counters, file: QuarantineSettings, kafka_server: str) -> None:
    set_aside(file, kafka_server, (3, b"key", b"\x00value of a record, longer than a line"))
    shown = counters(file, "quarantine", "show", f"{TOPIC}:0:3").out
    assert "now      waits" in shown
    assert "value    38 bytes" in shown
    assert "  00000000  00 76 61 6c 75 65 20 6f 66 20 61 20 72 65 63 6f  .value of a reco" in shown
    counters(file, "quarantine", "drop", "--all")
    assert "now      counted or dropped" in counters(file, "quarantine", "show", f"{TOPIC}:0:3").out


def test_a_damaged_entry_costs_itself(
    counters: Counters, file: QuarantineSettings, kafka_server: str
) -> None:
    assert file.file is not None
    file.file.write_bytes(b"{half a li\n")
    set_aside(file, kafka_server, (3, b"one", NAMED))
    done = counters(file, "quarantine", "list", "--json")
    assert json.loads(done.out)["offset"] == 3
    assert done.err == "1 entries of the quarantine are damaged and not shown\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "t:0:1"], "nothing is set aside as 't:0:1'; counters quarantine list shows what is"),
        (["drop", "t:0:1"], "'t:0:1' does not wait; counters quarantine list shows what does"),
        (["retry", "t:0:1"], "'t:0:1' does not wait; counters quarantine list shows what does"),
        (["retry", ""], "'' does not wait; counters quarantine list shows what does"),
        (["retry"], "name records by their ID, or give --all for all of them"),
        (["drop", "--all", "t:0:1"], "name records by their ID, or give --all for all of them"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    counters: Counters, file: QuarantineSettings, arguments: list[str], message: str
) -> None:
    done = counters(file, "quarantine", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"counters: {message}")
    assert done.err.count("\n") == 1


def test_without_a_quarantine_the_settings_are_named(counters: Counters) -> None:
    done = counters(None, "quarantine", "list")
    assert done.code == 2
    assert "set journal.quarantine.file or journal.quarantine.topic" in done.err


def test_a_receipt_lives_as_long_as_its_record(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"one", NAMED))
    counters(file, "quarantine", "retry", "--all")
    long_ago = int((datetime.now(UTC) - timedelta(days=400)).timestamp() * 1_000_000)
    kept = f"{TOPIC}:0:3@1700000000000"
    redis_client.zadd(f"{{{STORE}}}:receipts", {kept: long_ago, "gone:0:1@5": long_ago})
    done = counters(file, "checkpoints", "prune", "--only", "receipts")
    assert done.code == 0
    assert done.out.startswith("receipts  1 deleted (")
    assert Receipts(redis_client, STORE).known([kept, "gone:0:1@5"]) == {kept}
    assert counters(file, "quarantine", "retry", "--all").out == "0 records counted\n"


def test_a_dry_run_says_what_would_go_and_deletes_nothing(
    counters: Counters, file: QuarantineSettings, kafka_server: str, redis_client: Redis
) -> None:
    set_aside(file, kafka_server, (3, b"one", NAMED))
    counters(file, "quarantine", "retry", "--all")
    redis_client.zadd(f"{{{STORE}}}:receipts", {"gone:0:1@5": 1})
    done = counters(file, "checkpoints", "prune", "--dry-run", "--only", "receipts")
    assert (done.code, done.out.startswith("receipts  1 from before ")) == (0, True)
    assert Receipts(redis_client, STORE).count() == 2


def test_a_node_that_was_not_heard_of_blocks_until_it_is_forgotten(
    counters: Counters, file: QuarantineSettings, redis_client: Redis
) -> None:
    redis_client.zadd(f"{{{STORE}}}:receipts", {"gone:0:1@5": 1})
    RedisCheckpoints(redis_client, STORE).put("flush:lost", None, {}, "idle")
    done = counters(file, "checkpoints", "prune", "--only", "receipts")
    assert (done.code, "node lost was not heard of" in done.out) == (1, True)
    assert counters(file, "checkpoints", "forget-node", "lost").out == "node lost is forgotten\n"
    assert RedisCheckpoints(redis_client, STORE).get("flush:lost") is None
    assert counters(file, "checkpoints", "forget-node", "lost").code == 2
