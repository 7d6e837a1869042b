"""``counters checkpoints`` as an operator uses it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from published import PREFIX
from redis import Redis
from serving import listening

from counters.checkpoints.model import Advance
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.sql_store import SqlCheckpoints
from counters.cli import run
from counters.sql import connect
from journal_client.pytest_plugin import wait_for

BACKFILL, REBUILD = "backfill:content", "rebuild:revision"
READ_ONLY = "written by the system"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def checkpoints(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``checkpoints("show", name)`` runs the command."""
    monkeypatch.setenv("COUNTERS_REDIS__URL", redis_url)
    monkeypatch.setenv("COUNTERS_JOURNAL__GROUP_ID", "readers")

    def call(*arguments: str) -> Done:
        code = run(["checkpoints", *arguments])
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def store(redis_client: Redis) -> RedisCheckpoints:
    """Two tasks: one that runs, one that is paused."""
    store = RedisCheckpoints(redis_client, PREFIX)
    cursor, counts = {"done": 4_300, "total": 10_000, "offset": 7}, {"examined": 4_300}
    store.apply(Advance(BACKFILL, cursor, counts, runner="ann/17", ok=4_298, failed=2))
    store.pause(REBUILD)
    return store


@pytest.fixture
def read(redis_client: Redis) -> None:
    """What a worker leaves behind of two partitions."""
    positions = {"objects.content:0": 12, "objects.content:1": 15, "objects.content": 27}
    redis_client.hset(f"{{{PREFIX}}}:offsets:readers", mapping=positions)
    redis_client.hset(f"{{{PREFIX}}}:stamps", "content", 1_700_000_000_000)


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.usefixtures("store")
def test_the_list_is_one_aligned_line_per_task(checkpoints: Call) -> None:
    done = checkpoints("list")
    heading, backfill, rebuild = done.out.splitlines()
    assert backfill.split() == [
        *(BACKFILL, "running", "43", "%", "examined", "4,300"),
        *("0", "s", "ago", "ann/17"),
    ]
    assert rebuild.split() == [REBUILD, "paused"]
    assert heading.index("state") == backfill.index("running") == rebuild.index("paused")


@pytest.mark.usefixtures("store")
def test_the_list_is_a_table_on_a_terminal(redis_url: str) -> None:
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "counters", "checkpoints", "list"]
    variables = {**os.environ, "COUNTERS_REDIS__URL": redis_url, "COLUMNS": "120", "TERM": "xterm"}
    done = subprocess.run(command, stdout=inner, env=variables, timeout=30, check=True)
    os.close(inner)
    shown = os.read(outer, 100_000).decode()
    os.close(outer)
    assert done.returncode == 0
    assert "─────" in shown
    assert "\x1b[33mpaused" in shown


@pytest.mark.usefixtures("store")
def test_the_list_in_json_is_one_array_with_everything(checkpoints: Call) -> None:
    backfill, rebuild = json.loads(checkpoints("list", "--json").out)
    assert (backfill["name"], rebuild["name"]) == (BACKFILL, REBUILD)
    assert backfill["cursor"] == {"done": 4_300, "total": 10_000, "offset": 7}
    assert backfill["items"] == {"ok": 4_298, "failed": 2}
    assert (backfill["progress"], rebuild["progress"]) == (0.43, None)
    assert (rebuild["desired"], rebuild["observed"]) == ("paused", "idle")


@pytest.mark.usefixtures("store")
def test_the_list_can_be_of_one_state(checkpoints: Call) -> None:
    assert [row[0] for row in columns(checkpoints("list", "--state", "paused").out)[1:]] == [REBUILD]
    assert checkpoints("list", "--state", "idle").err == "no task is idle\n"


def test_without_tasks_the_list_says_so_and_is_an_empty_array(checkpoints: Call) -> None:
    assert (checkpoints("list").code, checkpoints("list").err) == (0, "there are no tasks yet\n")
    assert json.loads(checkpoints("list", "--json").out) == []


def test_one_task_is_shown_with_its_moments_in_utc_and_who_runs_it(
    store: RedisCheckpoints, checkpoints: Call
) -> None:
    with store.claim(BACKFILL, "ann/17"):
        lines = dict(line.split("  ", 1) for line in checkpoints("show", BACKFILL).out.splitlines())
    found = {name: text.strip() for name, text in lines.items()}
    assert found["runs now"].startswith("ann/17 (claim ")
    assert found["cursor"] == '{"done":4300,"total":10000,"offset":7}'
    assert found["items"] == "ok 4,298, failed 2 in all runs"
    assert found["last progress"].endswith(" ago")
    assert " UTC, " in found["last progress"]


@pytest.mark.usefixtures("store")
def test_one_task_in_json_is_one_object_with_its_holder(checkpoints: Call) -> None:
    shown = json.loads(checkpoints("show", BACKFILL, "--json").out)
    assert (shown["name"], shown["state"], shown["holder"]) == (BACKFILL, "running", None)


@pytest.mark.usefixtures("read")
def test_positions_in_the_journal_are_a_row_of_the_system(checkpoints: Call) -> None:
    [row] = json.loads(checkpoints("list", "--json").out)
    assert (row["name"], row["state"], row["system"]) == ("journal:readers", "active", True)
    assert row["cursor"] == {"objects.content[0]": 12, "objects.content[1]": 15}
    assert row["counts"] == {"objects.content": 27}
    assert row["updated_at"] == "2023-11-14T22:13:20Z"


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("name", ["journal:readers", "schema:core"])
@pytest.mark.parametrize("verb", ["pause", "resume", "rewind", "delete"])
def test_what_the_system_writes_is_shown_and_not_changed(checkpoints: Call, verb: str, name: str) -> None:
    done = checkpoints(verb, name)
    assert (done.code, READ_ONLY in done.err, done.err.count("\n")) == (2, True, 1)
    assert checkpoints("show", "journal:readers").code == 0


@pytest.mark.parametrize("name", ["events_backfill", ":global", "CreditExpiry:global", "a b:c", ""])
@pytest.mark.parametrize("verb", ["show", "pause", "resume", "rewind", "delete"])
def test_what_is_no_name_of_a_task_is_refused_everywhere(checkpoints: Call, verb: str, name: str) -> None:
    done = checkpoints(verb, name)
    assert (done.code, "is no name of a task" in done.err, done.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("verb", ["show", "resume", "rewind"])
def test_a_task_that_does_not_exist_is_one_line(checkpoints: Call, verb: str) -> None:
    done = checkpoints(verb, "backfill:origin")
    assert done.code == 2
    assert done.err == (
        "counters: there is no task backfill:origin; counters checkpoints list shows those there are\n"
    )


def test_pausing_says_who_stops_and_when(store: RedisCheckpoints, checkpoints: Call) -> None:
    with store.claim(BACKFILL, "ann/17"):
        done = checkpoints("pause", BACKFILL)
    assert "ann/17" in done.out
    assert "stops at its next batch" in done.out
    row = store.get(BACKFILL)
    assert row is not None
    assert (row.state, row.position["offset"], row.observed) == ("paused", 7, "running")


def test_a_task_may_be_paused_before_it_ever_ran(store: RedisCheckpoints, checkpoints: Call) -> None:
    assert "nothing runs it" in checkpoints("pause", "backfill:origin").out
    assert store.paused("backfill:origin")


@pytest.mark.parametrize(
    ("name", "advice"), [("check:origin", "run counters check to go on"), ("other:origin", "it goes on when")]
)
def test_resuming_says_how_to_go_on(
    store: RedisCheckpoints, checkpoints: Call, name: str, advice: str
) -> None:
    store.pause(name)
    assert advice in checkpoints("resume", name).out
    row = store.get(name)
    assert row is not None
    assert row.state == "idle"


def test_rewinding_sets_the_cursor_and_keeps_the_counts(store: RedisCheckpoints, checkpoints: Call) -> None:
    assert "at that cursor" in checkpoints("rewind", BACKFILL, "--to", '{"offset": 3}').out
    row = store.get(BACKFILL)
    assert row is not None
    assert (row.position, row.counts) == ({"offset": 3}, {"examined": 4_300})
    assert "at the beginning" in checkpoints("rewind", BACKFILL).out
    row = store.get(BACKFILL)
    assert row is not None
    assert row.position == {}


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "JSON object"),
        ("[1]", "JSON object"),
        ("[" * 60_000, "JSON object"),
        ('{"a": "\udcff"}', "JSON object"),
        (json.dumps({"a": "x" * 70_000}), "not up to 65536"),
    ],
    ids=["cut off", "array", "deep", "no text", "long"],
)
def test_a_cursor_that_is_none_is_one_line(checkpoints: Call, text: str, complaint: str) -> None:
    done = checkpoints("rewind", BACKFILL, "--to", text)
    assert (done.code, complaint in done.err, done.err.count("\n")) == (2, True, 1)


def test_a_task_that_runs_is_deleted_only_by_force(store: RedisCheckpoints, checkpoints: Call) -> None:
    with store.claim(BACKFILL, "ann/17"):
        refused = checkpoints("delete", BACKFILL)
        assert (refused.code, "ann/17" in refused.err, "--force" in refused.err) == (2, True, True)
        assert store.get(BACKFILL) is not None
        assert checkpoints("delete", BACKFILL, "--force").code == 0
    assert store.get(BACKFILL) is None


@pytest.mark.usefixtures("store")
def test_deleting_succeeds_whether_there_is_something_or_not(checkpoints: Call) -> None:
    assert "is forgotten" in checkpoints("delete", REBUILD).out
    again = checkpoints("delete", REBUILD)
    assert (again.code, "not known" in again.out) == (0, True)


def test_a_damaged_row_is_listed_and_can_be_deleted(
    store: RedisCheckpoints, redis_client: Redis, checkpoints: Call
) -> None:
    redis_client.hset(f"{{{PREFIX}}}:checkpoints", "verify:origin", b"junk")
    assert ["verify:origin", "damaged"] in columns(checkpoints("list").out)
    assert "counters checkpoints delete verify:origin" in checkpoints("show", "verify:origin").err
    assert checkpoints("delete", "verify:origin").code == 0
    assert len(store.list()) == 2


def test_nothing_that_is_shown_moves_the_cursor_of_a_terminal(
    store: RedisCheckpoints, redis_client: Redis, checkpoints: Call
) -> None:
    store.advance(REBUILD, {"at": "\x1b[2J"}, {"note": "\x1b[2J\r\n"})
    redis_client.hset(f"{{{PREFIX}}}:checkpoints", b"x:\x1b[2J\xff", b"junk")
    shown = checkpoints("list").out + checkpoints("show", REBUILD).out
    assert "\x1b" not in shown
    assert "\r" not in shown


def test_a_redis_that_does_not_answer_is_one_line(checkpoints: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERS_REDIS__URL", "redis://127.0.0.1:1")
    for command in (["list"], ["show", BACKFILL], ["pause", BACKFILL], ["delete", BACKFILL]):
        done = checkpoints(*command)
        assert (done.code, "Redis does not answer" in done.err, done.err.count("\n")) == (2, True, 1)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", ["serve", "exporter"])
def test_the_processes_that_publish_metrics_publish_the_tasks(redis_url: str, command: str) -> None:
    with listening(command, "--port", "0", COUNTERS_REDIS__URL=redis_url) as (_, address):
        metrics = address.removesuffix("metrics") + "metrics"
        wait_for(lambda: 'task_paused{task="rebuild:revision"} 1.0' in answer_of(metrics))


@pytest.mark.usefixtures("store")
def test_serve_has_the_tasks_in_its_api(redis_url: str) -> None:
    with listening("serve", "--port", "0", COUNTERS_REDIS__URL=redis_url) as (_, address):
        wait_for(lambda: f'"name":"{BACKFILL}"' in answer_of(f"{address}api/v1/checkpoints"))


def answer_of(address: str) -> str:
    """What a server says, which may still be starting."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(address).text
    return ""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database that the settings name, without tables."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    monkeypatch.setenv("COUNTERS_SQL__URL", url)
    return url


def test_tasks_of_all_stores_are_one_list(checkpoints: Call, store: RedisCheckpoints, database: str) -> None:
    assert checkpoints("create-tables").out == "the tables are there\n"
    assert checkpoints("create-tables").code == 0
    SqlCheckpoints(connect(database)).advance("visits:git", {"at": 1})
    names = [task["name"] for task in json.loads(checkpoints("list", "--json").out)]
    assert names == [BACKFILL, REBUILD, "schema:core", "visits:git"]
    assert checkpoints("pause", "visits:git").code == 0
    assert SqlCheckpoints(connect(database)).paused("visits:git")
    assert store.get("visits:git") is None
    assert READ_ONLY in checkpoints("pause", "schema:core").err


def test_a_database_without_tables_says_how_to_make_them(checkpoints: Call, database: str) -> None:
    assert checkpoints("list").code == 0
    done = checkpoints("delete", "visits:git")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "counters checkpoints create-tables makes them" in done.err


def test_without_a_database_there_are_no_tables_to_make(checkpoints: Call) -> None:
    done = checkpoints("create-tables")
    assert (done.code, done.err) == (2, "counters: no database is configured; set sql.url\n")


def test_a_wrong_database_names_the_setting(checkpoints: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERS_SQL__URL", "mysql://ann:s3cret@host/db")
    done = checkpoints("list")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "it must be sqlite or postgresql; change sql.url" in done.err
    assert "s3cret" not in done.err
