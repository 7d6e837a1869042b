"""Settings: file and environment, what is refused and how, and what is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from counters.cli.docs import TARGET, reference
from counters.config import Settings
from counters.errors import SettingsError
from counters.settings import effective_settings, load_settings
from journal_client.config import JournalSettings, OffsetReset


@pytest.fixture(autouse=True)
def _no_variables_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("COUNTERS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def refused(path: Path | None = None) -> str:
    """The one line with which the settings are refused."""
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_without_file_and_variables_the_defaults_hold() -> None:
    assert load_settings() == Settings()


def test_an_empty_file_or_section_means_defaults(settings_file: Path) -> None:
    settings_file.write_text("journal:\n")
    assert load_settings(settings_file) == Settings()


def test_the_file_is_typed(settings_file: Path) -> None:
    settings_file.write_text(
        "journal: {brokers: [a:1, b:2], auto_offset_reset: latest, batch: {max_seconds: 2}}"
    )
    journal = load_settings(settings_file).journal
    assert journal.brokers == "a:1,b:2"
    assert journal.auto_offset_reset is OffsetReset.LATEST
    assert journal.batch.max_seconds == 2.0


def test_the_environment_wins_over_the_file(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text("journal: {brokers: a:1, batch: {max_messages: 5, max_bytes: 2048}}")
    monkeypatch.setenv("COUNTERS_JOURNAL__BATCH__MAX_MESSAGES", "7")
    journal = load_settings(settings_file).journal
    assert (journal.brokers, journal.batch.max_messages, journal.batch.max_bytes) == ("a:1", 7, 2048)


@pytest.mark.parametrize("text", ["content,revision", '["content", "revision"]', "content, revision"])
def test_a_list_in_the_environment_is_json_or_comma_separated(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERS_JOURNAL__OBJECT_TYPES", text)
    assert load_settings().journal.object_types == ["content", "revision"]


def test_a_librdkafka_key_can_be_set_by_the_environment(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file.write_text("journal: {kafka: {sasl.username: ada}}")
    monkeypatch.setenv("COUNTERS_JOURNAL__KAFKA__SASL_PASSWORD", "s3cret")
    assert load_settings(settings_file).journal.kafka == {"sasl.username": "ada", "sasl.password": "s3cret"}


def test_two_variables_for_one_setting_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERS_JOURNAL__KAFKA", '{"a.b": 1}')
    monkeypatch.setenv("COUNTERS_JOURNAL__KAFKA__SASL_PASSWORD", "s3cret")
    line = refused()
    assert "COUNTERS_JOURNAL__KAFKA and COUNTERS_JOURNAL__KAFKA__SASL_PASSWORD contradict" in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("journal: {broker: x}", "unknown setting journal.broker; did you mean journal.brokers?"),
        ("jurnal: {}", "unknown setting jurnal; did you mean journal?"),
        (
            "journal: {batch: {max_message: 1}}",
            "journal.batch.max_message; did you mean journal.batch.max_me",
        ),
        ("journal: {precision: 14}", "unknown setting journal.precision; did you mean objects.precision?"),
        ("api: {colour: red}", "unknown setting api.colour"),
        (
            "journal: {batch: {max_messages: many}}",
            "journal.batch.max_messages is 'many', but should be a valid",
        ),
        ("objects: {precision: 21}", "objects.precision is 21, but should be less than or equal to 20"),
        ("objects: {layout: flat}", "objects.layout is 'flat', but should be 'native' or 'legacy'"),
        (
            "journal: {object_types: [rev/ision]}",
            "journal.object_types.0 is 'rev/ision', but String should match",
        ),
        ("journal: 5", "journal is 5, but should be a valid dictionary"),
        ("- a", "expected sections (journal, redis, objects,"),
        ("journal: [1\nredis: 2", "line 2, column 6: not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(
    text: str, complaint: str, settings_file: Path
) -> None:
    settings_file.write_text(text)
    line = refused(settings_file)
    assert line.startswith(str(settings_file))
    assert complaint in line


def test_further_mistakes_are_counted(settings_file: Path) -> None:
    settings_file.write_text("journal: {broker: x, on_gap: maybe}\napi: {port: high}")
    assert refused(settings_file).endswith("did you mean journal.brokers? (and 2 more)")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("COUNTERS_REDS__URL", "x", "unknown setting COUNTERS_REDS__URL; did you mean COUNTERS_REDIS__URL?"),
        ("COUNTERS_REDIS_URL", "x", "unknown setting COUNTERS_REDIS_URL; did you mean COUNTERS_REDIS__URL?"),
        ("COUNTERS_JOURNAL__BROKER", "x", "unknown setting journal.broker; did you mean journal.brokers?"),
        ("COUNTERS_REDIS__TIMEOUT", "-3", "redis.timeout is '-3', but should be greater than 0"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    name: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    line = refused()
    assert name in line
    assert complaint in line


@pytest.mark.parametrize(
    "name",
    [
        "COUNTERS_PORT",
        "COUNTERS_SERVICE_HOST",
        "COUNTERS_PORT_5011_TCP_ADDR",
        "COUNTERS_SERVE_SERVICE_PORT_HTTP",
    ],
)
def test_variables_that_kubernetes_makes_of_a_service_are_no_settings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:5011")
    assert load_settings() == Settings()


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    line = refused(tmp_path / "none.yaml")
    assert line.endswith("none.yaml: No such file or directory; set --config or COUNTERS_CONFIG")


def test_a_file_that_is_not_text_is_one_line(settings_file: Path) -> None:
    settings_file.write_bytes(b"journal: \xff")
    assert refused(settings_file).endswith("byte 9 is not UTF-8")


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("enable.auto.commit", "positions are stored by the view"),
        ("group.id", "set journal.group_id"),
        ("bootstrap.servers", "set journal.brokers"),
        ("auto.offset.reset", "set journal.auto_offset_reset"),
    ],
)
def test_a_librdkafka_key_that_the_loop_owns_is_refused(key: str, advice: str) -> None:
    with pytest.raises(ValidationError, match=f"kafka must not hold {key}; {advice}"):
        JournalSettings(kafka={key: "x"})


@pytest.mark.parametrize(
    "key", ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"]
)
def test_the_new_group_protocol_refuses_what_the_broker_decides(key: str, settings_file: Path) -> None:
    settings_file.write_text(f"journal: {{group_protocol: consumer, kafka: {{{key}: 6000}}}}")
    assert f"journal: kafka must not hold {key} with group_protocol 'consumer'" in refused(settings_file)
    JournalSettings(group_protocol="classic", kafka={key: 6000})  # type: ignore[arg-type]


def test_a_quarantine_topic_that_would_be_read_itself_is_refused(settings_file: Path) -> None:
    """Every record without a key in it would be set aside into it again."""
    settings_file.write_text("journal: {prefix: a.b, quarantine: {topic: a.b.dead}}")
    assert "quarantine.topic a.b.dead is below journal.prefix and would be read itself" in refused(
        settings_file
    )
    settings_file.write_text("journal: {prefix: a.b, object_types: [content], quarantine: {topic: a.b.dead}}")
    load_settings(settings_file)


@pytest.mark.parametrize("topic", ["", "dead letters", "a/b"])
def test_a_quarantine_topic_that_kafka_would_refuse_is_refused(settings_file: Path, topic: str) -> None:
    settings_file.write_text(f'journal: {{quarantine: {{topic: "{topic}"}}}}')
    assert "journal.quarantine.topic" in refused(settings_file)


@pytest.mark.parametrize("brokers", ['",,"', '""', "[]", '["", ""]', "[[a, b], c]", "9092", "{a: b}"])
def test_brokers_that_name_none_are_refused(settings_file: Path, brokers: str) -> None:
    settings_file.write_text(f"journal: {{brokers: {brokers}}}")
    assert "journal.brokers" in refused(settings_file)


def test_brokers_are_a_list_or_separated_by_commas() -> None:
    for brokers in (["a:1", "b:2"], "a:1, b:2,"):
        assert JournalSettings.model_validate({"brokers": brokers}).brokers == "a:1,b:2"


SECRETS = {
    "sasl.password": "s3cret-a",
    "ssl.key.password": "s3cret-b",
    "ssl.key.pem": "s3cret-c",
    "sasl.oauthbearer.client.secret": "s3cret-d",
    "sasl.oauthbearer.config": "principal=ada",
}


def test_secrets_are_never_shown() -> None:
    settings = Settings.model_validate(
        {"redis": {"url": "rediss://ada:s3cret-e@[::1]:6379/0"}, "journal": {"kafka": SECRETS}}
    )
    shown = {key: value for key, value, _ in effective_settings(settings)}
    assert "s3cret" not in repr(shown) + repr(settings) + str(settings)
    assert shown["redis.url"] == "rediss://ada:***@[::1]:6379/0"
    assert shown["journal.kafka.sasl.oauthbearer.config"] == "'principal=ada'"


@pytest.mark.parametrize("text", ["redis: {url: [s3cret]}", "journal: {kafka: [s3cret]}"])
def test_a_wrong_secret_is_not_repeated_in_the_complaint(text: str, settings_file: Path) -> None:
    settings_file.write_text(text)
    assert "s3cret" not in refused(settings_file)


def test_effective_settings_say_where_each_value_comes_from(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file.write_text("journal: {group_id: mine, kafka: {fetch.min.bytes: 9}}")
    monkeypatch.setenv("COUNTERS_API__PORT", "8080")
    rows = {key: (value, source) for key, value, source in effective_settings(load_settings(settings_file))}
    assert rows["journal.group_id"] == ("'mine'", "set")
    assert rows["journal.kafka.fetch.min.bytes"] == ("9", "set")
    assert rows["api.port"] == ("8080", "environment")
    assert rows["redis.prefix"] == ("'counters'", "default")


def test_the_reference_in_the_docs_is_fresh() -> None:
    assert TARGET.read_text(encoding="utf-8") == reference(), "run python -m counters.cli.docs"


def test_every_setting_is_explained() -> None:
    rows = [line.split(" | ") for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert all(len(cells) == 4 and len(cells[3]) > 10 for cells in rows)


@pytest.mark.parametrize(
    "setting", ["redis.timeout", "history.timeout", "history.refresh_every", "history.sample_every",
                "exporter.deadline"]
)  # fmt: skip
@pytest.mark.parametrize("endless", [".inf", ".nan", "1.0e+300"])
def test_a_time_without_an_end_is_refused(settings_file: Path, setting: str, endless: str) -> None:
    section, _, key = setting.partition(".")
    settings_file.write_text(f"{section}: {{{key}: {endless}}}")
    assert setting in refused(settings_file)


@pytest.mark.parametrize("setting", ["api.token", "history.bearer_token"])
@pytest.mark.parametrize("token", ["invented\\r\\nx: y", "invent\u00e9d", " invented", "invented\\0"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(
    settings_file: Path, setting: str, token: str
) -> None:
    section, _, key = setting.partition(".")
    settings_file.write_text(f'{section}: {{{key}: "{token}"}}')
    line = refused(settings_file)
    assert (setting in line, "printable ASCII" in line, "invent" in line) == (True, True, False)
