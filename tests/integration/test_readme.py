"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from counters.api.bodies import SingleCountBody
from counters.cli import COMMANDS, cli
from counters.objects.spec import CounterSpec
from counters.settings import load_settings
from journal_client.config import JournalSettings
from journal_client.writer import JournalWriter

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_view_in_the_readme_reads_a_journal(
    journal_settings: JournalSettings,
    journal_writer: JournalWriter,
    journal_prefix: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in (b"a", b"bbb", b"cc"):
        journal_writer.write("content", key, b"")
    journal_writer.flush(10)
    names: dict[str, Any] = {"BROKERS": journal_settings.brokers, "PREFIX": journal_prefix}
    define, run = blocks("python")
    exec(define, names)
    exec(run, names)
    assert capsys.readouterr().out == f"{{'{journal_prefix}.content': 3}}\n"


def test_every_settings_file_in_the_readme_is_valid(tmp_path: Path) -> None:
    files = blocks("yaml")
    assert len(files) == 2
    for number, text in enumerate(files):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        settings = load_settings(file)
        for section, values in yaml.safe_load(text).items():
            assert set(values) <= set(getattr(settings, section).model_fields_set)


def test_every_command_in_the_readme_exists_and_has_help() -> None:
    named = set(re.findall(r"^\| `counters (\w+)", README, re.MULTILINE))
    assert named == set(COMMANDS)
    for name in named:
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_the_answer_shown_has_the_fields_of_the_real_one() -> None:
    shown = json.loads(blocks("json")[0])
    assert shown.keys() == {field.name for field in fields(SingleCountBody)}
    assert shown["lower"] == round(shown["value"] * (1 - 2 * shown["standard_error"]))


@pytest.mark.parametrize("precision", [14, 16, 18, 20])
def test_the_table_of_precisions_is_right(precision: int) -> None:
    row = next(line for line in README.splitlines() if re.match(rf"\| {precision}\b", line))
    spec = CounterSpec("content", precision)
    assert f"{100 * spec.standard_error:.2f} %" in row
    assert f"{12 * spec.strata} KiB" in row
