"""Bad input at the command line ends in one line and exit code 2, never in a traceback."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from counters.cli import COMMANDS, cli, run
from counters.cli.logs import LineFormatter, configure_logging
from counters.embedded import EmbeddedRedis
from counters.errors import StoreError
from journal_client.errors import BrokerUnreachable


@pytest.fixture
def broken_file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text("journal: {broker: x}")
    return path


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """Exit code of a command that ends in ``error``."""

    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(type(cli), "get_command", lambda *_: command)
    return run([*options, "check"])


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("counters: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["chek"], "No such command 'chek'"),
        (["--colour", "check"], "--colour"),
        (["--log-level", "loud", "check"], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (["check", "--timeout", "soon"], "'soon' is not a valid float range"),
        (["check", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["--config", "/nonexistent/settings.yaml", "check"], "settings.yaml: No such file or directory"),
        (["--config", "/", "check"], "/: Is a directory"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert complaint in only_line(capsys)


def test_nothing_in_an_error_moves_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails_with(StoreError("no \x1b[31mcolumn\x1b]0;t\x07"), monkeypatch) == 2
    assert only_line(capsys) == "counters: no \ufffd[31mcolumn\ufffd]0;t\ufffd"


def test_an_unknown_setting_is_one_line(broken_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(broken_file), "check"]) == 2
    assert "unknown setting journal.broker; did you mean journal.brokers?" in only_line(capsys)


def test_the_settings_file_can_be_named_by_a_variable(
    broken_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERS_CONFIG", str(broken_file))
    assert run(["check"]) == 2
    assert str(broken_file) in only_line(capsys)


def test_help_needs_no_valid_settings(broken_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(broken_file), "check", "--help"]) == 0
    assert "Usage: counters check" in capsys.readouterr().out


def test_help_lists_every_command_without_importing_it() -> None:
    program = (
        "import sys; from counters.cli import run; run(['--help']); "
        "print([m for m in ('pydantic', 'redis', 'confluent_kafka', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]"
    for name, command in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert command.help in done.stdout


@pytest.mark.parametrize("error", [StoreError("fact\nvalue"), BrokerUnreachable("fact value")])
def test_an_expected_error_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails_with(error, monkeypatch) == 2
    assert only_line(capsys) == "counters: fact value"


def test_an_unforeseen_error_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails_with(KeyError("x"), monkeypatch) == 1
    assert "unexpected KeyError: 'x'" in only_line(capsys)


def test_the_traceback_is_shown_at_log_level_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails_with(StoreError("fact"), monkeypatch, "--log-level", "debug") == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err.strip() == "counters: interrupted"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counters", "chek"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert done.stderr == "counters: No such command 'chek'; see counters --help\n"


def test_a_log_record_is_one_line_of_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "text")
    logging.getLogger("room").warning('says "a=b"\nforged=line', extra={"topic": "t"})
    (line,) = capsys.readouterr().err.splitlines()
    assert 'level=warning logger=room message="says \\"a=b\\"\\nforged=line" topic=t' in line


def test_a_message_with_colours_is_logged_without_them() -> None:
    record = logging.makeLogRecord({"msg": "started", "color_message": "\x1b[36mstarted"})
    assert "color" not in LineFormatter(as_json=False).format(record)


def test_a_log_record_can_be_json() -> None:
    record = logging.makeLogRecord({"msg": "read %d", "args": (3,), "levelname": "INFO", "partition": 7})
    fields = json.loads(LineFormatter(as_json=True).format(record))
    assert (fields["message"], fields["level"], fields["partition"]) == ("read 3", "info", 7)


@pytest.mark.parametrize(
    ("variables", "arguments", "complaint"),
    [
        (
            {"JOURNAL__BROKERS": "127.0.0.1:1", "JOURNAL__START_TIMEOUT": "0.2"},
            ["count"],
            "no Kafka broker at 127.0.0.1:1 answered within 0.2 s",
        ),
        (
            {"REDIS__URL": "redis://:s3cret@127.0.0.1:1", "JOURNAL__START_TIMEOUT": "0.2"},
            ["count"],
            "no Redis at redis://:***@127.0.0.1:1 answered within 0.2 s",
        ),
        ({"REDIS__URL": "http://:s3cret@host"}, ["count"], "redis.url 'http://:***@host' is wrong"),
        (
            {"JOURNAL__KAFKA__FETCH_MIN_BITES": "1"},
            ["count"],
            "journal.kafka: No such configuration property",
        ),
        ({}, ["load", "git", "/nonexistent/repository"], "/nonexistent/repository"),
    ],
)
def test_every_command_says_what_to_change(
    variables: dict[str, str],
    arguments: list[str],
    complaint: str,
    redis_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"REDIS__URL": redis_url, **variables}.items():
        monkeypatch.setenv(f"COUNTERS_{name}", value)
    assert run(["--log-level", "error", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    ("options", "path", "reason"),
    [
        ({}, "/77", "DB index is out of range"),
        ({"requirepass": "invented"}, "", "Authentication required"),
    ],
)
def test_a_redis_that_refuses_a_worker_is_said_at_once(
    options: dict[str, str],
    path: str,
    reason: str,
    own_redis: Callable[..., EmbeddedRedis],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = own_redis(**options).url.removesuffix("/0") + path
    monkeypatch.setenv("COUNTERS_REDIS__URL", url)
    monkeypatch.setenv("COUNTERS_JOURNAL__START_TIMEOUT", "3600")
    assert run(["--log-level", "error", "count"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"counters: {url}: Redis refuses: {reason}")


def test_a_worker_waits_for_a_redis_that_comes_late(
    own_redis: Callable[..., EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis()
    server.kill()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: server.restart())
    monkeypatch.setattr("counters.cli.count.time", clock)
    for name, value in {"REDIS__URL": server.url, "JOURNAL__BROKERS": "127.0.0.1:1"}.items():
        monkeypatch.setenv(f"COUNTERS_{name}", value)
    monkeypatch.setenv("COUNTERS_JOURNAL__START_TIMEOUT", "2")
    with pytest.raises(BrokerUnreachable):
        cli.main(["--log-level", "error", "count"], standalone_mode=False)
