"""``counters backfill`` counts what the workers did not read: the past of a topic, or a dump."""

from __future__ import annotations

import gzip
import importlib
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting import expected, positions
from reading import numbered, running, write
from redis import Redis
from tasks import DERIVED, PRECISION, System, assert_counted, hex_dump, people, revisions

from counters.config import ObjectsSettings
from counters.objects.direct import DirectWriter
from counters.objects.generations import Generations
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

CreateTopics = Callable[..., None]
KEYS = [b"%020d" % number for number in range(1_000)]


@pytest.fixture
def system(journal_settings: JournalSettings, redis_url: str, tmp_path: Path) -> System:
    return System(journal_settings, redis_url, tmp_path)


# -- a topic -------------------------------------------------------------------------------------------------


def test_the_past_of_a_topic_is_counted_as_a_worker_would(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    write(system.journal.brokers, system.topic("content"), {n: numbered(250, 250 * n) for n in range(4)})
    done = system.run("backfill", "content", batch=300)
    assert (done.code, done.out) == (0, "1,000 records counted\n")
    assert_counted(redis_client, "content", numbered(1_000))
    [row] = system.checkpoints().list()
    assert (row.name, row.position, row.items) == ("backfill:content", {}, {"ok": 1_000, "failed": 0})


def test_what_messages_contain_is_counted_too_and_bad_messages_are_stepped_over(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("revision")
    records = [*revisions(300), (b"broken", b"\xc1"), (None, b"\x80")]
    write(system.journal.brokers, system.topic("revision"), {0: records})
    done = system.looking_for(DERIVED).run("backfill", "revision")
    assert (done.code, done.out) == (0, "300 records counted, 2 could not be\n")
    assert_counted(redis_client, "revision", [key for key, _ in revisions(300) if key])
    assert_counted(redis_client, "person", people(300))


def test_beside_a_live_worker_its_positions_and_its_messages_stay_its_own(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    topic = system.topic("content")
    write(system.journal.brokers, topic, {0: numbered(600)})
    with running(system.worker(redis_client)):
        wait_for(lambda: positions(redis_client, system.journal.group_id).get(topic) == 600)
        before = positions(redis_client, system.journal.group_id)
        done = system.run(
            "backfill",
            "content",
            at={"before 3": lambda: write(system.journal.brokers, topic, {1: numbered(400, 600)})},
        )
        assert done.out == "600 records counted\n"  # the end is that of the start
        wait_for(lambda: positions(redis_client, system.journal.group_id).get(topic) == 1_000)
    after = positions(redis_client, system.journal.group_id)
    assert {**before, topic: 1_000, f"{topic}:1": 400} == {f: n for f, n in after.items() if n}
    assert_counted(redis_client, "content", numbered(1_000))


def test_without_a_worker_there_are_no_positions(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    write(system.journal.brokers, system.topic("content"), {0: numbered(10)})
    assert system.run("backfill", "content").code == 0
    assert positions(redis_client, system.journal.group_id) == {}


def test_a_topic_without_records_is_done_at_once(system: System, create_topics: CreateTopics) -> None:
    create_topics("content")
    done = system.run("backfill", "content")
    assert (done.code, done.out) == (0, "0 records counted\n")


def test_a_missing_topic_and_a_counter_found_inside_others_are_one_line(
    system: System, create_topics: CreateTopics
) -> None:
    missing = system.run("backfill", "nothing")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert f"topic {system.topic('nothing')} does not exist" in missing.err
    inside = system.looking_for(DERIVED).run("backfill", "person")
    assert inside.code == 2
    assert inside.err == "counters: person is found inside messages of release, revision; backfill those\n"


def test_other_values_than_the_workers_look_for_are_not_counted_beside_theirs(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("revision")
    write(system.journal.brokers, system.topic("revision"), {0: list(revisions(10))})
    with running(system.looking_for(DERIVED).worker(redis_client)):
        wait_for(lambda: positions(redis_client, system.journal.group_id).get(system.topic("revision")) == 10)
    other = system.looking_for({"person": {"revision": ["committer.fullname"]}})
    done = other.run("backfill", "revision")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "give it the same objects.derived" in done.err
    assert_counted(redis_client, "person", people(10))


# -- a dump --------------------------------------------------------------------------------------------------


def as_parquet(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"n": list(range(len(KEYS))), "key": KEYS})
    importlib.import_module("pyarrow.parquet").write_table(table, path, row_group_size=300)


DUMPS: dict[str, tuple[str, Callable[[Path], object], list[str]]] = {
    "hexadecimal": ("keys", lambda path: path.write_text("".join(f"{k.hex()}\n" for k in KEYS)), []),
    "compressed": (
        "keys.gz",
        lambda path: path.write_bytes(gzip.compress("".join(f"{k.hex()}\n" for k in KEYS).encode())),
        [],
    ),
    "JSON lines": (
        "keys.jsonl",
        lambda path: path.write_text(
            "".join(json.dumps({"object": {"id": b64encode(k).decode()}}) + "\n" for k in KEYS)
        ),
        ["--field", "object.id", "--encoding", "base64"],
    ),
    "CSV": (
        "keys.csv",
        lambda path: path.write_text(
            "n,key\r\n" + "".join(f'{n},"\\x{k.hex()}"\r\n' for n, k in enumerate(KEYS))
        ),
        ["--field", "key"],
    ),
    "tabs": (
        "keys.tsv",
        lambda path: path.write_text("".join(f"a\t{k.decode()}\n" for k in KEYS)),
        [
            "--field",
            "2",
            "--encoding",
            "utf8",
        ],
    ),
    "Parquet": ("keys.parquet", as_parquet, ["--field", "key"]),
}


@pytest.mark.parametrize("form", DUMPS)
def test_a_dump_is_counted_in_every_format(form: str, system: System, redis_client: Redis) -> None:
    name, make, options = DUMPS[form]
    dump = system.folder / name
    make(dump)
    done = system.run("backfill", "content", "--create", "--from", str(dump), *options)
    assert (done.code, done.out) == (0, "1,000 keys counted\n"), done.err
    assert_counted(redis_client, "content", KEYS)
    [row] = system.checkpoints().list()
    assert (row.name, row.items) == (f"backfill:content:{name}", {"ok": 1_000, "failed": 0})


def test_bad_lines_are_counted_and_named(system: System, redis_client: Redis) -> None:
    dump = system.folder / "keys"
    dump.write_text("aa\nxyz\nbb\nabc\n")
    done = system.run("backfill", "content", "--create", "--from", str(dump))
    assert (done.code, done.out) == (0, "2 keys counted, 2 could not be\n")
    assert "line 2: not hexadecimal: 'xyz'" in done.err
    assert "line 4: not hexadecimal: 'abc'" in done.err
    assert_counted(redis_client, "content", [b"\xaa", b"\xbb"])


def test_garbage_is_no_key_and_no_counter(system: System, redis_client: Redis) -> None:
    dump = system.folder / "keys"
    dump.write_bytes(bytes(range(256)) * 400)
    done = system.run("backfill", "content", "--create", "--from", str(dump))
    assert (done.code, done.out.startswith("0 keys counted")) == (1, True)
    assert "Traceback" not in done.err
    assert not redis_client.exists("{counters}:registry")


def test_a_dump_that_begins_with_garbage_is_counted(system: System, redis_client: Redis) -> None:
    dump = Path(hex_dump(system, KEYS))
    dump.write_text("no key\n" * 2_000 + dump.read_text())
    done = system.run("backfill", "content", "--create", "--from", str(dump))
    assert done.out == "1,000 keys counted, 2,000 could not be\n"
    assert_counted(redis_client, "content", KEYS)


def test_a_dump_counted_again_changes_nothing(system: System, redis_client: Redis) -> None:
    dump = hex_dump(system, KEYS)
    assert system.run("backfill", "content", "--create", "--from", dump).code == 0
    before = redis_client.mget(CounterSpec("content", PRECISION).keys("counters"))
    assert system.run("backfill", "content", "--create", "--from", dump).out == "1,000 keys counted\n"
    assert redis_client.mget(CounterSpec("content", PRECISION).keys("counters")) == before


def interrupted(system: System, dump: str, *options: str) -> None:
    """Leave the backfill of ``dump`` after its third batch."""
    pause = system.checkpoints().pause
    name = f"backfill:content:{Path(dump).name}"
    done = system.run(
        "backfill",
        "content",
        "--create",
        "--from",
        dump,
        "--no-wait",
        *options,
        at={"before 3": lambda: pause(name)},
    )
    assert done.code == 0
    assert "is paused" in done.err
    system.checkpoints().resume(name)


def test_how_far_a_dump_is_can_be_listed(system: System) -> None:
    interrupted(system, hex_dump(system, KEYS))
    [row] = json.loads(system.run("checkpoints", "list", "--json").out)
    assert 0.2 < row["progress"] < 0.4


def test_another_file_under_the_same_name_is_refused(system: System, redis_client: Redis) -> None:
    dump = hex_dump(system, KEYS)
    interrupted(system, dump)
    hex_dump(system, KEYS[::-1])
    done = system.run("backfill", "content", "--create", "--from", dump)
    assert done.code == 2
    assert "the dump is not the one backfill:content:keys.hex has read so far" in done.err.splitlines()[-1]
    assert system.run("backfill", "content", "--create", "--from", dump, "--name", "other").code == 0
    assert_counted(redis_client, "content", KEYS)


def test_a_file_that_has_grown_meanwhile_is_read_to_its_new_end(system: System, redis_client: Redis) -> None:
    dump = hex_dump(system, KEYS[:600])
    interrupted(system, dump)
    hex_dump(system, KEYS)
    assert system.run("backfill", "content", "--create", "--from", dump).code == 0
    assert_counted(redis_client, "content", KEYS)
    [row] = system.checkpoints().list()
    assert row.items == {"ok": 1_000, "failed": 0}


def test_standard_input_goes_on_at_the_line_it_had_reached(system: System, redis_client: Redis) -> None:
    lines = "".join(f"{key.hex()}\n" for key in KEYS)
    with system.process("backfill", "content", "--create", "--from", "-", at={"before 4": "kill"}) as process:
        assert process.popen.stdin is not None
        process.popen.stdin.write(lines)
        process.popen.stdin.close()
        assert process.popen.wait(40) == -9
    with system.process("backfill", "content", "--create", "--from", "-") as process:
        assert process.popen.stdin is not None
        process.popen.stdin.write(lines)
        process.popen.stdin.close()
        assert process.popen.wait(40) == 0, process.said
    assert_counted(redis_client, "content", KEYS)
    [row] = system.checkpoints().list()
    assert (row.name, row.items) == ("backfill:content:stdin", {"ok": 1_000, "failed": 0})


def test_a_dump_is_counted_anew_if_its_counter_is_emptied_meanwhile(
    system: System, redis_client: Redis
) -> None:
    """Nobody else would count what was lost."""
    dump = hex_dump(system, KEYS)
    strata = CounterSpec("content", PRECISION).keys("counters")
    done = system.run(
        "backfill",
        "content",
        "--create",
        "--from",
        dump,
        at={"before 6": lambda: redis_client.delete(strata[0])},
    )
    assert done.code == 0, done.err
    assert "counter content was emptied or rebuilt meanwhile; counting all anew" in done.err
    assert_counted(redis_client, "content", KEYS)


def test_a_dump_is_counted_anew_if_its_counter_was_emptied_while_it_was_paused(
    system: System, redis_client: Redis
) -> None:
    """Another process noticed it first, and repaired the counter."""
    dump = hex_dump(system, KEYS)
    interrupted(system, dump)
    redis_client.delete(*CounterSpec("content", PRECISION).keys("counters"))
    store = CounterStore(redis_client, "counters", system.journal.group_id)
    DirectWriter(store, ObjectsSettings(precision=PRECISION, derived={}), "any").add("content", [b"key"])
    assert system.run("backfill", "content", "--create", "--from", dump).code == 0
    assert_counted(redis_client, "content", [*KEYS, b"key"])


def test_a_dump_goes_into_a_successor_that_was_begun_meanwhile(system: System, redis_client: Redis) -> None:
    dump = hex_dump(system, KEYS)
    generations = Generations(redis_client, "counters")
    begin = {"before 5": lambda: generations.begin("content", 16)}
    assert system.run("backfill", "content", "--create", "--from", dump, at=begin).code == 0
    spec = CounterStore(redis_client, "counters", "any").find("content")
    assert spec is not None
    generations.switch(spec)
    blobs = CounterStore(redis_client, "counters", "any").registers(CounterSpec("content", 16, 2))
    assert np.array_equal(np.concatenate([b for b in blobs if b is not None]), expected(KEYS, 16))


def test_a_foreign_value_in_a_key_of_the_counter_is_one_line_that_tells_the_way_on(
    system: System, redis_client: Redis
) -> None:
    dump = hex_dump(system, KEYS)
    stratum = CounterSpec("content", PRECISION).keys("counters")[1]
    put = {"before 4": lambda: redis_client.set(stratum, "somebody else's")}
    done = system.run("backfill", "content", "--create", "--from", dump, at=put)
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        "counters: a key of counter content holds something else; delete it from Redis, then counters "
        "checkpoints rewind backfill:content:keys.hex",
    )
    redis_client.delete(stratum)
    assert system.run("checkpoints", "rewind", "backfill:content:keys.hex").code == 0
    assert system.run("backfill", "content", "--create", "--from", dump).code == 0
    assert_counted(redis_client, "content", KEYS)


# -- wrong input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["con tent"], "'con tent' is not made of letters, digits and _ . - only"),
        (["../content"], "is not made of letters, digits"),
        (["content:1"], "is not made of letters, digits"),
        ([""], "is not made of letters, digits"),
        (["c" * 300], "is not made of letters, digits"),
        (["content", "--create", "--from", "."], "is a directory"),
        (["content", "--create", "--from", "missing"], "missing: No such file or directory"),
        (["content", "--field", "id"], "--field is about a dump; name it with --from"),
        (
            ["content", "--create", "--from", "-", "--format", "parquet"],
            "Parquet cannot be read from standard input",
        ),
        (["content", "--create", "--from", "-", "--format", "xml"], "'xml' is not one of"),
        (["content", "--create", "--from", "-", "--encoding", "base64"], "--format hex has neither"),
        (
            ["content", "--create", "--from", "pyproject.toml", "--name", "n" * 300],
            "has 317 characters, not up to 200",
        ),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], complaint: str, system: System) -> None:
    done = system.run("backfill", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert complaint in done.err
    assert system.checkpoints().list() == []


def test_a_cursor_that_is_none_is_one_line(system: System, create_topics: CreateTopics) -> None:
    create_topics("content")
    dump = hex_dump(system, KEYS)
    for name, command in (("content", ()), ("content:keys.hex", ("--create", "--from", dump))):
        for cursor in ({"range": {"x": 1}}, {"at": 7, "dump": "x"}, {"range": []}):
            system.checkpoints().put(f"backfill:{name}", cursor, {}, "idle")
            done = system.run("backfill", "content", *command)
            assert (done.code, "rewind" in done.err.splitlines()[-1]) == (2, True), done.err
            assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "at",
    [
        *("x", {"offset": "x"}, {"offset": -1}, {"offset": 1.5}, {"offset": True}, {"offset": 1 << 70}),
        {"offset": 1 << 40, "line": 3},
    ],
)
def test_a_place_that_is_not_in_the_dump_is_one_line(at: object, system: System) -> None:
    dump = hex_dump(system, KEYS)
    interrupted(system, dump)
    row = system.checkpoints().get("backfill:content:keys.hex")
    assert row is not None
    system.checkpoints().put(row.name, {**row.position, "at": at}, {}, "idle")
    done = system.run("backfill", "content", "--create", "--from", dump)
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        f"counters: the cursor of {row.name} is none of this task; counters checkpoints rewind {row.name}",
    )


def test_a_mistyped_counter_is_not_begun(system: System, redis_client: Redis) -> None:
    dump = hex_dump(system, KEYS)
    assert system.run("backfill", "content", "--create", "--from", dump).code == 0
    done = system.run("backfill", "contemt", "--from", dump)
    assert (done.code, done.err) == (
        2,
        "counters: no counter contemt in Redis; there are: content; --create begins one\n",
    )
    assert redis_client.hkeys("{counters}:registry") == [b"content"]
    assert system.run("backfill", "content", "--from", dump).code == 0


def test_a_resumed_run_says_that_it_counted_only_the_rest(system: System) -> None:
    dump = hex_dump(system, KEYS)
    interrupted(system, dump)
    assert "keys counted in this run\n" in system.run("backfill", "content", "--from", dump).out


def test_names_that_differ_are_tasks_that_differ(system: System) -> None:
    for name in ("x y.hex", "x-y.hex", "日本.hex", "--.hex"):
        path = system.folder / name
        path.write_text("aa\n")
        assert system.run("backfill", "content", "--create", "--from", str(path)).code == 0
    assert len(system.checkpoints().list()) == 4


def test_an_empty_name_is_one_line(system: System) -> None:
    done = system.run("backfill", "content", "--from", "-", "--name", "")
    assert (done.code, done.err) == (
        2,
        "counters: --name is empty; leave it out or give one; see counters backfill --help\n",
    )
