"""What the docs, the compose file and the chart tell people to set exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from counters.cli import COMMANDS
from counters.config import Settings
from counters.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
OURS = [service for service in COMPOSE["services"].values() if service["image"] == "counters:latest"]
DOCS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CHANGELOG.md"])


@pytest.mark.parametrize("service", OURS, ids=lambda service: str(service["command"][0]))
def test_the_variables_of_the_compose_file_are_settings(
    service: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.journal.brokers == "kafka:9092"
    assert service["command"][0] in COMMANDS


def test_the_settings_of_the_chart_are_settings() -> None:
    values = yaml.safe_load((ROOT / "charts/counters/values.yaml").read_text(encoding="utf-8"))
    Settings.model_validate(values["settings"])


def test_the_variables_of_the_chart_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("charts/counters/templates/*"))
    names = set(re.findall(r"COUNTERS_[A-Z0-9]+__[A-Z0-9_]+", chart))
    assert len(names) == 2
    for name in names:
        monkeypatch.setenv(name, "x")
    assert load_settings().journal.group_instance_id == "x"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_settings_in_the_docs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        Settings.model_validate(yaml.safe_load(block))
    sections = "|".join(Settings.model_fields)
    for name in re.findall(rf"`((?:{sections})\.[a-z_.]+[a-z])", text):
        assert _exists(name), name


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_in_the_docs_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def _exists(name: str) -> bool:
    model: Any = Settings()
    for part in name.split("."):
        if not hasattr(model, part):
            return False
        model = getattr(model, part)
    return True
