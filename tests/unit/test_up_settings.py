"""Which settings hold for ``counters up``."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from counters.config import HistorySettings
from counters.up import own_history


def test_the_history_keeps_its_files_but_not_its_prometheus() -> None:
    given = HistorySettings(
        url="http://prometheus:9090",
        bearer_token=SecretStr("an invented token"),
        static_files=[Path("old.json")],
        export_file=Path("new.json"),
    )
    history = own_history(given)
    assert (history.static_files, history.export_file) == (given.static_files, given.export_file)
    assert (history.url, history.bearer_token, history.sample_every) == (None, None, 5)
