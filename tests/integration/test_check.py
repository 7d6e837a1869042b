"""``counters check`` finds what is wrong with real servers, and never falls over itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from redis import Redis

from counters.checkpoints.redis_store import RedisCheckpoints
from counters.cli.check import check
from counters.cli.findings import Level, persistence_finding, position_findings, version_finding
from counters.config import Layout, ObjectsSettings, RedisSettings, Settings
from counters.embedded import EmbeddedRedis
from counters.objects.generations import Generations
from counters.objects.spec import CounterSpec
from journal_client.batch import Partition
from journal_client.config import JournalSettings, QuarantineSettings

NOBODY = "127.0.0.1:1"
"""An address at which nothing listens."""


@pytest.fixture
def settings(journal_settings: JournalSettings, redis_url: str) -> Settings:
    """Settings for the servers of this test; nothing is derived."""
    return Settings.model_validate(
        {"journal": journal_settings, "redis": {"url": redis_url}, "objects": {"derived": {}}}
    )


def report(settings: Settings, timeout: float = 10.0, code: int = 0) -> str:
    """What the command prints."""
    result = CliRunner().invoke(check, ["--no-settings", f"--timeout={timeout}"], obj=settings)
    assert result.exit_code == code, result.output
    return result.output


def register(redis: Redis, spec: CounterSpec) -> None:
    redis.hset("{counters}:registry", spec.name, msgspec.json.encode(spec))


def test_healthy_servers_are_all_ok(
    settings: Settings, redis_client: Redis, create_topics: Callable[..., None]
) -> None:
    create_topics("content")
    spec = CounterSpec("content", precision=15)
    register(redis_client, spec)
    for key in spec.keys("counters"):
        redis_client.pfadd(key, b"x")
    output = report(settings)
    assert "FAIL" not in output
    assert f"ok    topic {settings.journal.prefix}.content: 4 partitions, 0 records waiting" in output
    assert "ok    counter content: precision 15, 2 HyperLogLog keys, native" in output


def test_the_effective_settings_are_shown_without_secrets(settings: Settings) -> None:
    secret = {"redis": RedisSettings.model_validate({"url": "redis://:s3cret@127.0.0.1:1"})}
    result = CliRunner().invoke(check, ["--timeout=0.5"], obj=settings.model_copy(update=secret))
    assert "redis.url = redis://:***@127.0.0.1:1" in result.output
    assert "s3cret" not in result.output


def test_an_unreachable_redis_is_a_finding(settings: Settings) -> None:
    redis = RedisSettings.model_validate({"url": f"redis://{NOBODY}"})
    output = report(settings.model_copy(update={"redis": redis}), code=1)
    assert f"FAIL  redis: redis://{NOBODY} does not answer" in output
    assert "ok    brokers" in output


def test_a_wrong_redis_url_is_a_finding(settings: Settings) -> None:
    redis = RedisSettings.model_validate({"url": "http://:s3cret@host"})
    output = report(settings.model_copy(update={"redis": redis}), code=1)
    assert "FAIL  redis: redis.url" in output
    assert "s3cret" not in output


def test_a_frozen_redis_is_a_finding(settings: Settings, own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    server.pause()
    redis = RedisSettings.model_validate({"url": server.url})
    output = report(settings.model_copy(update={"redis": redis}), timeout=0.5, code=1)
    server.resume()
    assert "FAIL  redis" in output


def test_an_unreachable_broker_is_a_finding(settings: Settings) -> None:
    journal = settings.journal.model_copy(update={"brokers": NOBODY})
    output = report(settings.model_copy(update={"journal": journal}), timeout=0.5, code=1)
    assert f"FAIL  brokers: {NOBODY} did not answer within 0.5 s" in output
    assert "Connection refused" in output


def test_a_wrong_librdkafka_key_is_a_finding(settings: Settings) -> None:
    journal = settings.journal.model_copy(update={"kafka": {"fetch.min.bites": 1}})
    output = report(settings.model_copy(update={"journal": journal}), code=1)
    assert 'FAIL  journal: No such configuration property: "fetch.min.bites"; see journal.kafka' in output


def test_missing_topics_and_sources_of_derived_counters_are_warnings(settings: Settings) -> None:
    journal = settings.journal.model_copy(update={"object_types": ["origin"]})
    objects = ObjectsSettings(derived={"person": {"revision": ["author.fullname"]}})
    output = report(settings.model_copy(update={"journal": journal, "objects": objects}))
    assert f"warn  topic {journal.prefix}.origin: does not exist yet" in output
    assert "warn  counter person: is fed by revision, which journal.object_types leaves out" in output


def test_a_journal_without_topics_is_a_warning(settings: Settings) -> None:
    assert f"warn  topics: none below {settings.journal.prefix}" in report(settings)


def test_positions_are_compared_with_the_watermarks(
    settings: Settings, redis_client: Redis, create_topics: Callable[..., None]
) -> None:
    create_topics("content")
    topic = f"{settings.journal.prefix}.content"
    producer = Producer({"bootstrap.servers": settings.journal.brokers})
    for number in range(10):
        producer.produce(topic, key=bytes([number]), partition=0)
    assert producer.flush(10) == 0
    redis_client.hset(
        f"{{counters}}:offsets:{settings.journal.group_id}",
        mapping={f"{topic}:0": 7, f"{topic}:1": 99, topic: 7},
    )
    output = report(settings)
    assert (
        f"warn  {topic}[1]: position 99 is above the high watermark 0: the topic was created anew" in output
    )
    assert f"ok    topic {topic}: 4 partitions, 3 records waiting; 2 partitions never read" in output


def test_a_foreign_key_in_the_place_of_a_counter_fails(settings: Settings, redis_client: Redis) -> None:
    register(redis_client, CounterSpec("content", precision=14))
    redis_client.set("{counters}:hll:content:1:0", b"not a sketch")
    register(redis_client, CounterSpec("origin", precision=14, layout=Layout.LEGACY))
    redis_client.lpush("origin", b"x")
    output = report(settings, code=1)
    assert "FAIL  counter content: {counters}:hll:content:1:0 (string) is not a HyperLogLog" in output
    assert "FAIL  counter origin: origin (list) is not a HyperLogLog" in output


def test_a_vanished_key_fails(settings: Settings, redis_client: Redis) -> None:
    register(redis_client, CounterSpec("content", precision=16))
    redis_client.pfadd("{counters}:hll:content:1:2", b"x")
    assert "FAIL  counter content: 3 of its 4 keys vanished" in report(settings, code=1)


def test_a_rebuild_that_nobody_goes_on_with_is_a_warning(settings: Settings, redis_client: Redis) -> None:
    spec = CounterSpec("content", precision=14)
    register(redis_client, spec)
    redis_client.pfadd(*spec.keys("counters"), b"x")
    Generations(redis_client, "counters").begin("content", 15)
    subject = "counter content, rebuild: "
    assert f"warn  {subject}begun, and nobody goes on with it; run counters rebuild content" in report(
        settings
    )
    with RedisCheckpoints(redis_client, "counters").claim("rebuild:content", "host/1"):
        assert f"ok    {subject}to precision 15 by host/1 (claim 1)" in report(settings)


def test_paused_tasks_are_warnings(settings: Settings, redis_client: Redis) -> None:
    checkpoints = RedisCheckpoints(redis_client, "counters")
    checkpoints.pause("backfill:content")
    checkpoints.resume("backfill:revision")
    output = report(settings)
    assert "warn  task backfill:content: paused since 20" in output
    assert "backfill:revision" not in output


def test_a_damaged_row_fails(settings: Settings, redis_client: Redis) -> None:
    redis_client.hset("{counters}:checkpoints", "backfill:content", "{")
    assert "FAIL  task backfill:content: its checkpoint cannot be read" in report(settings, code=1)


def test_a_field_that_is_no_task_is_a_warning(settings: Settings, redis_client: Redis) -> None:
    redis_client.hset("{counters}:checkpoints", "\x1b[31mbad", "{}")
    assert RedisCheckpoints(redis_client, "counters").list() == []
    assert r"warn  checkpoints: field '\x1b[31mbad' is no task; delete that field" in report(settings)


def test_an_unreadable_registry_entry_costs_that_counter_only(
    settings: Settings, redis_client: Redis
) -> None:
    redis_client.hset("{counters}:registry", mapping={"a": b"{", "b": b'{"name": "b", "precision": 14}'})
    redis_client.pfadd("{counters}:hll:b:1:0", b"x")
    output = report(settings, code=1)
    assert "FAIL  counter a: an entry of the registry is not a counter" in output
    assert "ok    counter b" in output


@pytest.mark.parametrize("name", ["registry", "offsets:"])
def test_a_key_of_the_wrong_type_is_named(settings: Settings, redis_client: Redis, name: str) -> None:
    key = f"{{counters}}:{name}" + (settings.journal.group_id if name.endswith(":") else "")
    redis_client.set(key, b"x")
    output = report(settings, code=1)
    assert f"FAIL  {key}: Redis refuses to read it (WRONGTYPE" in output
    assert "does not answer" not in output


def test_garbage_in_the_place_of_a_position_costs_that_position_only(
    settings: Settings, redis_client: Redis
) -> None:
    key = f"{{counters}}:offsets:{settings.journal.group_id}"
    redis_client.hset(key, mapping={b"t:0": b"many", b"t:one": b"1", b"\xff": b"\xff"})
    output = report(settings, code=1)
    assert f"FAIL  {key}: field 't:0' holds 'many', which is no position" in output
    assert f"FAIL  {key}: field 't:one' holds '1', which is no position" in output
    assert "ok    brokers" in output


def test_a_precision_out_of_bounds_in_the_registry_fails(settings: Settings, redis_client: Redis) -> None:
    register(redis_client, CounterSpec("content", precision=60))
    assert "FAIL  counter content: counter content has precision 60" in report(settings, code=1)


@pytest.mark.parametrize(
    ("options", "path", "reason"),
    [
        ({}, "/77", "DB index is out of range"),
        ({"requirepass": "invented"}, "", "Authentication required."),
    ],
)
def test_a_redis_that_refuses_is_told_from_one_that_does_not_answer(
    settings: Settings,
    own_redis: Callable[..., EmbeddedRedis],
    options: dict[str, str],
    path: str,
    reason: str,
) -> None:
    url = own_redis(**options).url.removesuffix("/0") + path
    redis = RedisSettings.model_validate({"url": url})
    output = report(settings.model_copy(update={"redis": redis}), code=1)
    assert f"FAIL  redis: {url} refuses ({reason})" in output


def test_a_derived_counter_of_nothing_fails(settings: Settings) -> None:
    objects = ObjectsSettings(derived={"person": {}})
    output = report(settings.model_copy(update={"objects": objects}), code=1)
    assert "FAIL  objects.derived: objects.derived.person names no object type" in output


def test_a_quarantine_in_two_places_fails(settings: Settings) -> None:
    quarantine = QuarantineSettings(file=Path("aside.jsonl"), topic="aside")
    journal = settings.journal.model_copy(update={"quarantine": quarantine})
    output = report(settings.model_copy(update={"journal": journal}), code=1)
    assert "FAIL  journal.quarantine: journal.quarantine.topic (aside) and" in output


def test_an_evicting_redis_fails(settings: Settings, own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    redis = RedisSettings.model_validate({"url": server.url})
    output = report(settings.model_copy(update={"redis": redis}), code=1)
    assert "FAIL  redis eviction: allkeys-lru evicts counters" in output
    assert "warn  redis persistence: none" in output


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"redis_version": "7.0.15"}, Level.WARN),
        ({"redis_version": "6.2.18"}, Level.WARN),
        ({"redis_version": "6.2.19"}, Level.OK),
        ({"redis_version": "7.2.9"}, Level.WARN),
        ({"redis_version": "7.2.10"}, Level.OK),
        ({"redis_version": "7.4.5"}, Level.OK),
        ({"redis_version": "8.2.0"}, Level.OK),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.2"}, Level.WARN),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.0"}, Level.OK),
        ({"redis_version": "unstable"}, Level.WARN),
    ],
)
def test_servers_with_the_known_hole_are_warned_about(info: dict[str, str], level: Level) -> None:
    assert version_finding(info).level is level


@pytest.mark.parametrize(
    ("info", "save", "level", "word"),
    [
        ({"aof_enabled": 1}, "", Level.OK, "append-only"),
        ({"aof_enabled": 0}, "3600 1", Level.WARN, "RDB only"),
        ({"aof_enabled": 0}, "", Level.WARN, "none"),
        ({"aof_enabled": 0}, None, Level.WARN, "does not tell"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "", Level.FAIL, "aof_last_write_status is err"),
    ],
)
def test_persistence_is_judged(info: dict[str, object], save: str | None, level: Level, word: str) -> None:
    finding = persistence_finding(info, save)
    assert finding.level is level
    assert word in finding.text


@pytest.mark.parametrize(("policy", "level"), [("continue", Level.WARN), ("stop", Level.FAIL)])
def test_a_gap_is_as_bad_as_its_policy_makes_it(policy: str, level: Level) -> None:
    settings = Settings.model_validate({"journal": {"on_gap": policy}})
    (finding,) = position_findings(settings, Partition("t", 3), 120, 450, 500)
    assert finding.level is level
    assert finding.text.startswith("position 120 is below the low watermark 450: 330 records expired unread")
