"""Who may change something over HTTP, as the settings say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from counters.api.security import holds_token
from counters.config import Access, ApiSettings, Settings
from counters.errors import SettingsError
from counters.settings import effective_settings, load_settings
from counters.up import System


def load(tmp_path: Path, text: str) -> ApiSettings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return load_settings(path).api


def test_nobody_may_write_by_default() -> None:
    legacy = ApiSettings().legacy
    assert (legacy.add, legacy.refresh_history) == (Access.OFF, Access.OFF)


def test_off_needs_no_quotes_in_yaml(tmp_path: Path) -> None:
    legacy = load(tmp_path, "api: {legacy: {add: off, refresh_history: open}}").legacy
    assert (legacy.add, legacy.refresh_history) == (Access.OFF, Access.OPEN)


@pytest.mark.parametrize("token", ["", "token: ''"])
def test_asking_for_a_token_that_is_not_set_is_one_line(tmp_path: Path, token: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, f"api: {{legacy: {{add: token}}, {token}}}")
    assert "set api.token" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../history.json", "a/b.json", "", "a b"])
def test_a_history_file_is_a_name_and_not_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="history_files"):
        load(tmp_path, f"api: {{legacy: {{history_files: ['{name}']}}}}")


@pytest.mark.parametrize("token", [None, SecretStr("")])
def test_without_a_token_nobody_holds_it(token: SecretStr | None) -> None:
    for authorization in ("", "Bearer", "Bearer ", "Basic", "Basic Og=="):
        assert not holds_token(authorization, token)


def test_the_token_is_not_shown() -> None:
    settings = Settings(api=ApiSettings(token=SecretStr("an invented token")))
    assert "invented" not in repr(effective_settings(settings)) + repr(settings)


def test_the_token_reaches_the_processes_that_up_starts_and_nobody_else(tmp_path: Path) -> None:
    settings = Settings(api=ApiSettings(token=SecretStr("an invented token")))
    written = System(settings, [])._write_settings(tmp_path)
    assert load_settings(written).api.token == SecretStr("an invented token")
    assert written.stat().st_mode & 0o077 == 0
