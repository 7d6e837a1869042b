"""A settings file of swh-counters is understood as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from counters.config import Layout, Settings
from counters.errors import SettingsError
from counters.legacy import redis_url, translate
from counters.settings import load_settings
from journal_client.config import OffsetReset

Loader = Callable[[str], Settings]

WORKER = """
counters:
  cls: redis
  host: redis.example.org:6380
journal:
  brokers:
    - kafka1.example.org:9093
    - kafka2.example.org:9093
  group_id: example-swh.counters.journal_client
  prefix: swh.journal.objects
  object_types: [content, origin, revision]
  batch_size: 500
  stop_after_objects: 1000
  privileged: true
  security.protocol: SASL_SSL
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: example
  sasl.password: invented
  enable.auto.commit: true
  consumer_settings:
    fetch.min.bytes: 4096
"""

HISTORY = """
counters: {cls: redis, host: h}
history:
  cls: prometheus
  prometheus_host: prometheus.example.org
  prometheus_port: 9091
  live_data_start: 1618415227
  interval: 12h
  labels: {environment: production}
  cache_base_directory: CACHE
"""


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    def write_and_load(text: str) -> Settings:
        path = tmp_path / "counters.yaml"
        path.write_text(text)
        return load_settings(path)

    return write_and_load


def test_a_workers_file_becomes_todays_settings(load: Loader) -> None:
    settings = load(WORKER)
    assert settings.redis.url.get_secret_value() == "redis://redis.example.org:6380/0"
    assert settings.objects.layout is Layout.LEGACY
    assert settings.objects.precision == 14
    journal = settings.journal
    assert journal.brokers == "kafka1.example.org:9093,kafka2.example.org:9093"
    assert journal.group_id == "example-swh.counters.journal_client"
    assert journal.object_types == ["content", "origin", "revision"]
    assert journal.batch.max_messages == 500
    assert journal.stop_after == 1000
    assert journal.kafka == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "example",
        "sasl.password": "invented",
        "fetch.min.bytes": 4096,
    }


def test_what_has_no_effect_is_said_in_the_log(load: Loader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(WORKER)
    for words in (
        "journal.privileged is ignored",
        "enable.auto.commit is ignored",
    ):
        assert words in caplog.text


def test_the_servers_file_needs_no_journal(load: Loader) -> None:
    settings = load("counters: {cls: redis, host: localhost}")
    assert settings.redis.url.get_secret_value() == "redis://localhost:6379/0"


@pytest.mark.parametrize(
    ("line", "stops"),
    [
        ("stop_on_eof: true", True),
        ("on_eof: stop", True),
        ("on_eof: continue", False),
        ("stop_on_eof: false", False),
    ],
)
def test_stopping_at_the_end_is_translated(line: str, stops: bool, load: Loader) -> None:
    settings = load(f"counters: {{cls: redis, host: 'h:1'}}\njournal: {{cls: kafka, {line}}}")
    assert settings.journal.stop_at_end is stops


def test_librdkafka_names_of_our_settings_are_translated(load: Loader) -> None:
    text = "{auto.offset.reset: latest, group.instance.id: pod-0, consumer_settings: {group.id: g}}"
    journal = load(f"counters: {{cls: redis, host: 'h:1'}}\njournal: {text}").journal
    assert journal.auto_offset_reset is OffsetReset.LATEST
    assert journal.group_instance_id == "pod-0"
    assert journal.group_id == "g"
    assert journal.kafka == {}


def test_the_history_section_becomes_todays_settings(load: Loader, tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("{}")
    history = load(HISTORY.replace("CACHE", str(tmp_path))).history
    assert history.url == "http://prometheus.example.org:9091"
    assert history.metric == "swh_archive_object_total"
    assert history.labels == {"environment": "production"}
    assert history.step == 12 * 3600
    assert history.live_data_start is not None
    assert history.live_data_start.timestamp() == 1618415227
    assert history.static_files == [tmp_path / "history.json"]


def test_an_empty_cache_directory_is_said_in_the_log(
    load: Loader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(HISTORY.replace("CACHE", str(tmp_path))).history.static_files == []
    assert f"{tmp_path} has no history.json" in caplog.text


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("prometheus_host: h", "http://h:9090"),
        ("prometheus_host: 'h:90'", "http://h:90"),
        ("prometheus_host: 'https://h/prefix', prometheus_port: 443", "https://h:443/prefix"),
        ("url: 'http://today'", "http://today"),
    ],
)
def test_the_address_of_prometheus_is_translated(section: str, url: str, load: Loader) -> None:
    assert load(f"counters: {{cls: redis, host: h}}\nhistory: {{{section}}}").history.url == url


@pytest.mark.parametrize(
    ("interval", "step"), [("12h", 43_200), ("1d12h", 129_600), ("90s", 90), (3600, 3600)]
)
def test_an_interval_becomes_seconds(interval: str | int, step: int, load: Loader) -> None:
    settings = load(f"counters: {{cls: redis, host: h}}\nhistory: {{interval: {interval}}}")
    assert settings.history.step == step


def test_sections_of_today_may_stand_beside_the_old_ones(load: Loader) -> None:
    settings = load("counters: {cls: redis, host: 'h:1'}\nredis: {prefix: mine}\nobjects: {layout: native}")
    assert settings.redis.prefix == "mine"
    assert settings.redis.url.get_secret_value() == "redis://h:1/0"
    assert settings.objects.layout is Layout.NATIVE


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("counters: {cls: remote, url: 'http://h:5011'}", "counters.cls is 'remote'"),
        ("counters: {cls: redis, hots: 'h:1'}", "unknown setting counters.hots"),
        ("counters: redis", "section counters is 'redis'"),
        ("counters: {cls: redis}\njournal: {broker: h}", "unknown setting journal.broker; did you mean"),
        ("counters: {cls: redis}\njournal: {on_eof: restart}", "journal.on_eof is 'restart'"),
        ("counters: {cls: redis}\nhistory: {cls: file}", "history.cls is 'file'"),
        ("counters: {cls: redis}\nhistory: {interval: often}", "history.interval is 'often'"),
        ("counters: {cls: redis}\nhistory: {prometheus_hots: h}", "unknown setting history.prometheus_hots"),
    ],
)
def test_what_cannot_be_translated_is_one_line(text: str, complaint: str, load: Loader) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_translating_leaves_the_given_data_alone() -> None:
    data = {"counters": {"cls": "redis", "host": "h:1"}, "journal": {"consumer_settings": {"a.b": 1}}}
    translate(data)
    assert data == {"counters": {"cls": "redis", "host": "h:1"}, "journal": {"consumer_settings": {"a.b": 1}}}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("redis", "redis://redis:6379/0"),
        ("redis:6380", "redis://redis:6380/0"),
        ("::1", "redis://[::1]:6379/0"),
        ("[::1]", "redis://[::1]:6379/0"),
        ("[2001:db8::7]:6380", "redis://[2001:db8::7]:6380/0"),
        ("rediss://h:1/3", "rediss://h:1/3"),
    ],
)
def test_a_host_becomes_a_url(host: str, url: str) -> None:
    assert redis_url(host) == url
