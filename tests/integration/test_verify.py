"""``counters verify`` recounts a counter exactly, and says whether it is as it should be."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting import expected
from reading import numbered
from redis import Redis
from tasks import DERIVED, PRECISION, System, expire, people, revisions, write_keys

from counters.config import ObjectsSettings
from counters.objects.direct import DirectWriter
from counters.objects.sketch import estimate_strata
from counters.objects.spec import CounterSpec
from counters.objects.store import CounterStore
from counters.objects.verify import Verdict
from journal_client.config import JournalSettings

CreateTopics = Callable[..., None]


@pytest.fixture
def system(journal_settings: JournalSettings, redis_url: str, tmp_path: Path) -> System:
    return System(journal_settings, redis_url, tmp_path)


@pytest.fixture
def counted(system: System, create_topics: CreateTopics, redis_client: Redis) -> System:
    """2,000 records of 1,500 keys, counted by a worker."""
    create_topics("content")
    write_keys(system, "content", {0: numbered(1_000), 1: numbered(1_000, 500)})
    system.count(redis_client)
    return system


def figures(out: str) -> dict[str, float]:
    """The numbers of a verdict."""
    return {
        name: float(number.replace(",", ""))
        for name, number in re.findall(r"^(\w+) +([+-]?[\d,.]+)", out, re.MULTILINE)
    }


def left(system: System) -> list[Path]:
    """What verify left of its own."""
    return [path for path in system.folder.rglob("*") if path.suffix in (".spool", ".npy", ".new")]


def test_a_good_counter_is_told_exactly_and_leaves_no_file(counted: System) -> None:
    done = counted.run("verify", "content", batch=300)
    assert done.code == 0, done.err
    said = figures(done.out)
    estimate = estimate_strata(expected(numbered(1_500), PRECISION))
    assert (said["exact"], said["estimate"], said["lost"]) == (1_500, estimate, 0)
    error = CounterSpec("content", PRECISION).standard_error
    assert said["deviation"] == round((estimate - 1_500) / (1_500 * error), 2)
    assert "standard errors of 0.57 %; 4 are allowed" in done.out
    assert list(counted.folder.glob("counters-verify-*")) == []
    [row] = counted.checkpoints().list()
    assert (row.position, row.items["ok"]) == ({}, 2_000)
    assert (row.counts["exact"], row.counts["lost_registers"]) == (1_500, 0)


def test_records_that_workers_have_not_read_yet_are_left_out(counted: System) -> None:
    write_keys(counted, "content", {0: numbered(700, 10_000), 3: numbered(100, 20_000)})
    done = counted.run("verify", "content")
    assert (done.code, figures(done.out)["exact"]) == (0, 1_500)


def test_records_counted_while_it_runs_do_not_matter(counted: System, redis_client: Redis) -> None:
    def more() -> None:
        write_keys(counted, "content", {0: numbered(3_000, 10_000)})
        counted.count(redis_client)

    done = counted.run("verify", "content", at={"before 3": more})
    assert (done.code, figures(done.out)["exact"]) == (0, 1_500)


def test_keys_lost_behind_the_back_of_redis_are_found_although_the_estimate_looks_fine(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    write_keys(system, "content", {0: numbered(1_490)})
    system.count(redis_client)
    stratum = CounterSpec("content", PRECISION).keys("counters")[0]
    older = redis_client.get(stratum)
    write_keys(system, "content", {0: numbered(10, 1_490)})
    system.count(redis_client)
    assert older is not None
    redis_client.set(stratum, older)
    done = system.run("verify", "content")
    said = figures(done.out)
    assert (done.code, said["exact"]) == (1, 1_500)
    assert abs(said["deviation"]) <= 4
    assert 0 < said["lost"] <= 10
    assert left(system) == []


def test_keys_from_elsewhere_show_as_a_deviation(counted: System, redis_client: Redis) -> None:
    store = CounterStore(redis_client, "counters", counted.journal.group_id)
    foreign = DirectWriter(store, ObjectsSettings(precision=PRECISION, derived={}), "any")
    foreign.add("content", numbered(150, 50_000))
    done = counted.run("verify", "content")
    said = figures(done.out)
    assert (done.code, said["exact"], said["lost"]) == (1, 1_500, 0)
    assert said["deviation"] > 4


def test_a_journal_that_begins_later_is_compared_with_a_sketch_of_what_is_left(
    counted: System, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter knows more than can be recounted, which is no fault."""
    from counters.objects.ranges import Journal
    from journal_client.assignment import Watermarks

    feeding = Journal.feeding
    monkeypatch.setattr(
        Journal,
        "feeding",
        lambda journal, counter: {
            partition: Watermarks(min(mark.high, 600), mark.high)
            for partition, mark in feeding(journal, counter).items()
        },
    )
    done = counted.run("verify", "content")
    said = figures(done.out)
    keys = [*numbered(400, 600), *numbered(400, 1_100)]
    assert (done.code, said["exact"], said["lost"]) == (0, 800, 0)
    assert said["estimate"] == estimate_strata(expected(keys, PRECISION))
    assert "older keys were not recounted" in done.err


def test_what_expires_while_it_runs_is_no_fault_of_the_counter(counted: System) -> None:
    paused(counted)
    expire(counted, "content", 0)
    expire(counted, "content", 1)
    done = counted.run("verify", "content")
    said = figures(done.out)
    assert (done.code, said["lost"]) == (0, 0), done.err
    assert 0 < said["exact"] <= 300  # of three batches that were read before
    assert "older keys were not recounted" in done.err


def test_a_derived_counter_is_recounted_from_the_topics_that_there_are(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("revision")  # and no release
    write_keys(system, "revision", {0: revisions(300)})
    system = system.looking_for(DERIVED)
    system.count(redis_client)
    done = system.run("verify", "person")
    assert (done.code, figures(done.out)["exact"]) == (0, len(people(300))), done.err


def test_a_counter_that_has_counted_nothing_is_good(
    system: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    create_topics("content")
    CounterStore(redis_client, "counters", "any").register(CounterSpec("content", PRECISION))
    done = system.run("verify", "content")
    assert (done.code, figures(done.out)) == (0, {"exact": 0, "estimate": 0, "deviation": 0, "lost": 0})


@pytest.mark.parametrize("moment", ["before 6", "after 6"])
def test_a_killed_recount_goes_on_where_it_was(moment: str, counted: System) -> None:
    """Also if it was killed between the work and its record: nothing is in the spool twice."""
    with counted.process("verify", "content", at={moment: "kill"}) as process:
        assert process.popen.wait(40) == -signal.SIGKILL
    row = counted.checkpoints().get("verify:content")
    assert row is not None
    assert 0 < row.items["ok"] <= 400
    with counted.process("verify", "content") as process:
        ended = process.end()
    assert (ended.code, figures(ended.out)["exact"]) == (0, 1_500), ended.err
    row = counted.checkpoints().get("verify:content")
    assert row is not None
    assert row.items["ok"] == 2_000
    assert left(counted) == []


def paused(system: System, *options: str) -> None:
    """Leave a recount after its fourth batch; the first only says what is to be done."""
    store = system.checkpoints()
    pause = {"before 4": lambda: store.pause("verify:content")}
    assert system.run("verify", "content", "--no-wait", *options, at=pause).code == 0
    store.resume("verify:content")


def test_a_spool_that_is_gone_is_one_line_that_tells_how_to_begin_anew(counted: System) -> None:
    spool = counted.folder / "spool"
    paused(counted, "--spool", str(spool))
    for path in spool.iterdir():
        path.unlink()
    spool.rmdir()
    done = counted.run("verify", "content", "--spool", str(spool))
    assert (done.code, done.out) == (2, "")
    complaint = done.err.splitlines()[-1]
    assert f"the spool in {spool} has 0 bytes" in complaint
    assert complaint.endswith("counters checkpoints rewind verify:content")
    assert counted.run("checkpoints", "rewind", "verify:content").code == 0
    done = counted.run("verify", "content", "--spool", str(spool))
    assert (done.code, figures(done.out)["exact"]) == (0, 1_500)
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize("name", ["counted.npy", "expected.npy"])
def test_registers_that_are_damaged_on_disk_are_one_line(name: str, counted: System) -> None:
    spool = counted.folder / "spool"
    paused(counted, "--spool", str(spool))
    for damage in (b"", b"junk", (spool / name).read_bytes()[:-5]):
        (spool / name).write_bytes(damage)
        done = counted.run("verify", "content", "--spool", str(spool))
        assert (done.code, done.err.splitlines()[-1].count("rewind verify:content")) == (2, 1), done.err
        assert "Traceback" not in done.err
    np.save(spool / name, np.zeros(7, np.uint8))
    assert "does not hold the registers" in counted.run("verify", "content", "--spool", str(spool)).err


def test_two_recounts_do_not_share_a_directory(
    counted: System, create_topics: CreateTopics, redis_client: Redis
) -> None:
    """Those of two deployments on one machine, say: the second must not touch what the first one wrote."""
    spool = str(counted.folder / "spool")
    seen = []

    def other() -> None:
        seen.append(counted.run("verify", "other", "--spool", spool))

    create_topics("other")
    write_keys(counted, "other", {0: numbered(5)})
    counted.count(redis_client)
    done = counted.run("verify", "content", "--spool", spool, at={"before 4": other})
    assert (seen[0].code, "is in use by another process" in seen[0].err) == (2, True)
    assert (done.code, figures(done.out)["exact"]) == (0, 1_500)


def test_a_directory_that_somebody_prepared_is_not_used(counted: System) -> None:
    elsewhere = counted.folder / "elsewhere"
    elsewhere.mkdir()
    (counted.folder / f"counters-verify-{os.getuid()}-content").symlink_to(elsewhere)
    done = counted.run("verify", "content")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert (
        "is not a directory of this user alone (mode 700); delete it, or name another one with --spool"
        in done.err
    )
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_one_line(counted: System) -> None:
    (counted.folder / "file").write_text("")
    done = counted.run("verify", "content", "--spool", str(counted.folder / "file" / "spool"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Not a directory; name another directory with --spool" in done.err


def test_an_unknown_counter_is_one_line(system: System, create_topics: CreateTopics) -> None:
    create_topics("content")
    done = system.run("verify", "content")
    assert done.code == 2
    assert done.err == "counters: there is no counter content; counters check shows those there are\n"
    assert list(system.folder.glob("counters-verify-*")) == []


@pytest.mark.parametrize(
    ("exact", "estimate", "lost", "good"),
    [
        (10_000, 10_000, 0, True),
        (10_000, 10_400, 0, True),
        (10_000, 9_600, 0, True),
        (10_000, 10_401, 0, False),
        (10_000, 9_599, 0, False),
        (10_000, 10_000, 1, False),
        (0, 0, 0, True),
        (0, 5, 0, False),
    ],
)
def test_four_standard_errors_and_no_lost_register_are_good(
    exact: int, estimate: int, lost: int, good: bool
) -> None:
    assert Verdict(exact, estimate, standard_error=0.01, lost=lost, whole=True).good is good
