"""Which settings hold for ``counters up``."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from counters.config import HistorySettings
from counters.up import GROUP, own_history, own_journal
from journal_client.config import JournalSettings


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


def test_workers_share_no_port_no_name_and_no_end() -> None:
    """What one worker alone may have would end the second, or all of them."""
    given = JournalSettings.model_validate(
        {
            "group_instance_id": "one",
            "group_protocol": "consumer",
            "auto_offset_reset": "latest",
            "http": {"port": 9377},
            "quarantine": {"topic": "aside"},
            "stop_at_end": True,
            "stop_after": 5,
            "prefix": "kept",
        }
    )
    journal = own_journal(given, "127.0.0.1:1")
    assert JournalSettings.model_validate(journal.model_dump()) == journal
    assert (journal.brokers, journal.group_id, journal.prefix) == ("127.0.0.1:1", GROUP, "kept")
    assert (journal.group_instance_id, journal.group_protocol) == (None, "classic")
    assert (journal.http.port, journal.quarantine.topic) == (None, None)
    assert (journal.stop_at_end, journal.stop_after) == (False, None)
    assert journal.auto_offset_reset == "earliest"
