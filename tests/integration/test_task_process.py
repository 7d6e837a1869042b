"""A long task as a process: it is killed, stopped, paused, resumed and started twice."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from redis import Redis
from tasks import System, assert_counted, claimable, hex_dump, write_keys

from counters.checkpoints.model import RUNNING
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for

KEYS = [b"%020d" % number for number in range(1_000)]
NAME = "backfill:content:keys.hex"


@pytest.fixture
def system(journal_settings: JournalSettings, redis_url: str, tmp_path: Path) -> System:
    return System(journal_settings, redis_url, tmp_path)


@pytest.fixture
def dump(system: System) -> tuple[str, ...]:
    """Arguments of a command that takes ten batches."""
    return ("backfill", "content", "--create", "--from", hex_dump(system, KEYS))


def done_so_far(system: System, name: str = NAME) -> int:
    row = system.checkpoints().get(name)
    return 0 if row is None else row.items["ok"]


# -- kill ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before 4", "after 4"])
def test_a_killed_dump_goes_on_at_its_last_batch(
    moment: str, system: System, dump: tuple[str, ...], redis_client: Redis
) -> None:
    with system.process(*dump, at={moment: "kill"}) as process:
        assert process.popen.wait(40) == -signal.SIGKILL
    assert 200 < done_so_far(system) < 500
    wait_for(lambda: claimable(system.checkpoints(), NAME), timeout=0.1)
    ended = system.run(*dump)
    assert ended.code == 0
    assert done_so_far(system) == 1_000
    assert_counted(redis_client, "content", KEYS)


def test_a_killed_topic_goes_on_at_its_last_batch(
    system: System, create_topics: Callable[..., None], redis_client: Redis
) -> None:
    create_topics("content")
    write_keys(system, "content", {0: KEYS[:500], 2: KEYS[500:]})
    with system.process("backfill", "content", at={"before 4": "kill"}) as process:
        assert process.popen.wait(40) == -signal.SIGKILL
    assert 0 < done_so_far(system, "backfill:content") <= 300
    wait_for(lambda: claimable(system.checkpoints(), "backfill:content"), timeout=0.1)
    assert system.run("backfill", "content").code == 0
    assert done_so_far(system, "backfill:content") == 1_000
    assert_counted(redis_client, "content", KEYS)


# -- pause ---------------------------------------------------------------------------------------------------


def test_a_pause_lets_the_batch_in_hand_finish_and_no_other_begin(
    system: System, dump: tuple[str, ...], redis_client: Redis
) -> None:
    store = system.checkpoints()
    with system.process(*dump, at={"before 4": "hold"}) as process:
        process.expect("before 4, hold")
        before = done_so_far(system)
        assert system.run("checkpoints", "pause", NAME).code == 0
        process.release()
        process.expect(f"{NAME} is paused; waiting for: counters checkpoints resume {NAME}")
        assert claimable(store, NAME)
        row = store.get(NAME)
        assert row is not None
        assert (row.state, 50 < row.items["ok"] - before < 150) == ("paused", True)
        assert system.run("checkpoints", "resume", NAME).code == 0
        ended = process.end()
    assert ended.code == 0
    assert ended.out == "1,000 keys counted\n"
    assert "going on" in ended.err
    assert_counted(redis_client, "content", KEYS)
    row = store.get(NAME)
    assert row is not None
    assert (row.state, row.items["ok"]) == ("idle", 1_000)


def test_a_paused_task_is_left_alone_if_it_is_not_to_wait(system: System, dump: tuple[str, ...]) -> None:
    store = system.checkpoints()
    store.pause(NAME)
    ended = system.run(*dump, "--no-wait")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines()[-1] == (
        f"{NAME} is paused; counters checkpoints resume {NAME}, then the same command goes on"
    )
    row = store.get(NAME)
    assert row is not None
    assert (row.state, row.items["ok"]) == ("paused", 0)


def test_a_task_deleted_while_it_waits_does_not_go_on(system: System, dump: tuple[str, ...]) -> None:
    """It was given up: beginning anew is not for this process to decide."""
    system.checkpoints().pause(NAME)
    with system.process(*dump) as process:
        process.expect("is paused; waiting")
        assert system.run("checkpoints", "delete", NAME).code == 0
        ended = process.end()
    assert ended.code == 2
    assert f"counters: {NAME} was deleted while it was paused; it does not go on\n" in ended.err
    assert system.checkpoints().list() == []


# -- signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_batch_in_hand_finish(
    number: signal.Signals, system: System, dump: tuple[str, ...]
) -> None:
    with system.process(*dump, at={"before 4": "hold"}) as process:
        process.expect("before 4, hold")
        before = done_so_far(system)
        process.signal(number)
        process.release()
        ended = process.end()
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.endswith(f"{NAME} was stopped; the same command goes on where it stopped\n")
    assert 50 < done_so_far(system) - before < 150
    row = system.checkpoints().get(NAME)
    assert row is not None
    assert row.observed != RUNNING
    assert claimable(system.checkpoints(), NAME)


def test_a_second_signal_ends_the_process_within_the_batch(system: System, dump: tuple[str, ...]) -> None:
    with system.process(*dump, at={"before 4": "hold"}) as process:
        process.expect("before 4, hold")
        process.signal(signal.SIGINT)
        wait_for(lambda: _pending_signals(process.popen.pid) == 0)
        process.signal(signal.SIGTERM)
        ended = process.end()
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "counters: interrupted")
    assert system.run(*dump).code == 0
    assert done_so_far(system) == 1_000


def test_a_signal_ends_a_process_that_waits_for_a_resumption(system: System, dump: tuple[str, ...]) -> None:
    system.checkpoints().pause(NAME)
    with system.process(*dump) as process:
        process.expect("is paused; waiting")
        process.signal(signal.SIGTERM)
        ended = process.end()
    assert (ended.code, "was stopped" in ended.err) == (130, True)


def test_a_signal_before_anything_began_is_one_line(system: System) -> None:
    """Nothing has come through the pipe yet."""
    pipe = system.folder / "pipe"
    os.mkfifo(pipe)
    with (
        system.process("backfill", "content", "--create", "--from", str(pipe)) as process,
        pipe.open("wb"),  # returns when the process opens it, too
    ):
        process.signal(signal.SIGINT)
        ended = process.end()
    assert (ended.code, ended.err.strip()) == (130, "counters: interrupted")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _pending_signals(pid: int) -> int:
    return int(_status(pid)["ShdPnd"], 16)


# -- twice ---------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_who_runs_it(system: System, dump: tuple[str, ...]) -> None:
    with system.process(*dump, at={"before 4": "hold"}) as process:
        process.expect("before 4, hold")
        ended = system.run(*dump)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert ended.err.startswith(f"counters: {NAME} is already running: {socket.gethostname()}/")
        assert str(process.popen.pid) in ended.err
        process.release()
        assert process.end().code == 0
    assert done_so_far(system) == 1_000


# -- servers that do not answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["backfill", "rebuild", "verify"])
def test_without_brokers_a_task_ends_in_one_line(command: str, system: System) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    journal = system.journal.model_copy(update={"brokers": closed, "start_timeout": 0.5})
    ended = System(journal, system.redis_url, system.folder).run(command, "content")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert f"no Kafka broker at {closed} answered within 0.5 s" in ended.err
    assert list(system.folder.glob("counters-verify-*")) == []


@pytest.mark.parametrize("command", ["backfill", "rebuild", "verify"])
def test_without_redis_a_task_ends_in_one_line(command: str, system: System) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = System(system.journal, f"redis://127.0.0.1:{port}", system.folder).run(command, "content")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert "Redis does not answer" in ended.err


@pytest.mark.parametrize("command", ["backfill", "rebuild", "verify"])
def test_broken_settings_are_one_line(command: str, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("redis: {urll: x}\n")
    done = subprocess.run(
        [sys.executable, "-m", "counters", "--config", str(config), command, "content"],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n"), "urll" in done.stderr) == (2, 1, True)


# -- what is shown -------------------------------------------------------------------------------------------


def test_a_pipe_gets_lines_with_rate_and_time_left(
    system: System, dump: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.cli.progress.PLAIN_EVERY", 0.0)
    lines = system.run(*dump).err.splitlines()
    assert lines[0] == f"{NAME}: 0 keys (0 %)"
    assert any("/s" in line and line.endswith(" s left") for line in lines)
    assert lines[-1].startswith(f"{NAME}: 1,000 keys (100 %), ")


def test_a_terminal_gets_a_bar_with_per_cent(system: System, dump: tuple[str, ...]) -> None:
    code, shown = on_a_terminal(system, dump)
    assert code == 0
    assert NAME in shown
    assert "100%" in shown
    assert "1,000 keys" in shown
    assert "/s" in shown


def test_what_is_said_meanwhile_does_not_appear_within_the_bar(system: System) -> None:
    path = Path(hex_dump(system, KEYS))
    path.write_text(path.read_text() + "no key\n")
    code, shown = on_a_terminal(system, ("backfill", "content", "--create", "--from", str(path)))
    assert code == 0
    assert re.findall(r"(.{5})time=", shown, re.DOTALL) == ["\r\x1b[2K"]


def on_a_terminal(system: System, command: Sequence[str]) -> tuple[int, str]:
    """How a command ended whose standard error is a terminal, and what that shows."""
    ours, its = pty.openpty()
    script = Path(__file__).parents[1] / "task_process.py"
    accidents = '{"batch": 100, "at": {}}'
    with subprocess.Popen(
        [sys.executable, str(script), accidents, "--config", str(system.config()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=its,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    ) as process:
        os.close(its)
        shown = _read_all(ours)
        code = process.wait(40)
    os.close(ours)
    return code, shown


def _read_all(terminal: int) -> str:
    data = b""
    while select.select([terminal], [], [], 40)[0]:
        try:
            more = os.read(terminal, 65_536)
        except OSError:  # the other side is closed
            break
        if not more:
            break
        data += more
    return data.decode(errors="replace")
