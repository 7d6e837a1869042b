"""What ``counters check`` looks for: in the settings, in Redis, and in the journal beside its positions."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from counters.checkpoints.model import DAMAGED
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import Settings
from counters.errors import CountersError, SettingsError, StoreError
from counters.objects.derived import Derived
from counters.objects.spec import CounterSpec, decode_spec
from counters.redis import AnyRedis, mask_url
from journal_client.batch import Partition
from journal_client.config import OnProblem
from journal_client.errors import ConfigurationError
from journal_client.librdkafka import shared_config
from journal_client.quarantine import refuse_two_places


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """One line of the report."""

    level: Level
    subject: str
    text: str


Positions = Mapping[Partition, int] | None
"""The stored next offsets; None if Redis could not be asked."""

_FIXED_IN = {
    "redis": {(6, 2): 19, (7, 2): 10, (7, 4): 5, (8, 0): 3},
    "valkey": {(7, 2): 10, (8, 0): 4, (8, 1): 3},
}
"""First patch of each series in which a malformed HyperLogLog cannot write out of bounds (CVE-2025-32023)."""


# Settings


def settings_findings(settings: Settings) -> Iterator[Finding]:
    """What a worker would refuse although each setting by itself is well-formed."""
    try:
        Derived.from_config(settings.objects.derived)
    except SettingsError as error:
        yield Finding(Level.FAIL, "objects.derived", _line(error))
    try:
        refuse_two_places(settings.journal.quarantine)
    except ConfigurationError as error:
        yield Finding(Level.FAIL, "journal.quarantine", _line(error))


# Redis


def redis_findings(redis: AnyRedis, settings: Settings) -> Generator[Finding, None, Positions]:
    """Findings about the store; returns the positions of the group that it holds."""
    try:
        info = _info(redis)
        yield Finding(Level.OK, "redis", f"{_url(settings)} answers")
        yield version_finding(info)
        yield from _memory_findings(info)
        yield persistence_finding(info, _save_points(redis))
        yield from _counter_findings(redis, settings.redis.prefix)
        yield from _task_findings(redis, settings.redis.prefix)
        return (yield from _positions(redis, settings))
    except (ResponseError, AuthenticationError) as error:
        text = f"{_url(settings)} refuses ({_line(error)}); set redis.url, or the rights of its user"
        yield Finding(Level.FAIL, "redis", text)
    except (RedisError, OSError) as error:
        text = f"{_url(settings)} does not answer ({_line(error)}); set redis.url"
        yield Finding(Level.FAIL, "redis", text)
    return None


def _url(settings: Settings) -> str:
    return mask_url(settings.redis.url.get_secret_value())


def _info(redis: AnyRedis) -> dict[str, Any]:
    info: dict[str, Any] = redis.info()
    nodes = list(info.values())
    # A cluster client answers with one such dictionary per node.
    return (
        nodes[0]
        if nodes and all(isinstance(node, dict) and "redis_version" in node for node in nodes)
        else info
    )


def version_finding(info: Mapping[str, Any]) -> Finding:
    """Whether the server's release has the known hole in its HyperLogLog reader closed."""
    name = "valkey" if "valkey_version" in info else "redis"
    version = str(info[f"{name}_version"])
    major, minor, patch = ([int(part) for part in version.split(".")[:3] if part.isdecimal()] + [0, 0, 0])[:3]
    fixed = _FIXED_IN[name]
    if (major, minor) > max(fixed) or patch >= fixed.get((major, minor), patch + 1):
        return Finding(Level.OK, f"{name} version", version)
    releases = ", ".join(f"{series[0]}.{series[1]}.{first}" for series, first in fixed.items())
    return Finding(
        Level.WARN,
        f"{name} version",
        f"{version} is open to CVE-2025-32023 unless the distribution patched it; fixed in {releases}",
    )


def _memory_findings(info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(Level.FAIL, "redis role", "a replica refuses writes; set redis.url to the primary")
    policy = str(info.get("maxmemory_policy", "unknown"))  # managed servers keep some of it to themselves
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy.startswith("allkeys"):
        text = f"{policy} evicts counters without a word; set maxmemory-policy to noeviction in Redis"
        yield Finding(Level.FAIL, "redis eviction", text)
    else:
        yield Finding(Level.OK, "redis eviction", policy)
    if limit and used > 0.9 * limit:
        text = f"{used:,} of {limit:,} bytes used; beyond that writes are refused; raise maxmemory in Redis"
        yield Finding(Level.WARN, "redis memory", text)


def _save_points(redis: AnyRedis) -> str | None:
    """The RDB schedule; None where the server does not tell (managed servers refuse CONFIG)."""
    try:
        return str(redis.config_get("save").get("save", ""))
    except RedisError:
        return None


def persistence_finding(info: Mapping[str, Any], save_points: str | None) -> Finding:
    """Whether the counters survive a restart of the server, and how much of them."""
    subject = "redis persistence"
    for field in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(field, "ok") != "ok":
            return Finding(
                Level.FAIL, subject, f"{field} is {info[field]}: see the server's log (disk full?)"
            )
    if info.get("aof_enabled"):
        return Finding(Level.OK, subject, "append-only file")
    if save_points is None:
        return Finding(
            Level.WARN, subject, "no append-only file, and the server does not tell its RDB schedule"
        )
    if save_points:
        text = f"RDB only ({save_points}): what was counted since the last save is read again after a crash"
        return Finding(Level.WARN, subject, f"{text}; set appendonly yes in Redis")
    text = "none: a restart empties the counters and the whole journal is read again"
    return Finding(Level.WARN, subject, f"{text}; set appendonly yes in Redis")


def _counter_findings(redis: AnyRedis, prefix: str) -> Iterator[Finding]:
    registry = yield from _fields(redis, f"{{{prefix}}}:registry")
    if registry is None:
        return
    if not registry:
        yield Finding(Level.OK, "counters", f"none registered under {prefix} yet")
    for name, entry in sorted(registry.items()):
        subject = f"counter {_text(name)}"
        try:
            spec = decode_spec(entry)
        except StoreError as error:
            yield Finding(Level.FAIL, subject, _line(error))
            continue
        yield _keys_finding(redis, subject, spec, prefix)
        if spec.following is not None:
            yield from _rebuild_findings(redis, subject, spec.following, prefix)


def _rebuild_findings(
    redis: AnyRedis, subject: str, following: CounterSpec, prefix: str
) -> Iterator[Finding]:
    finding = _keys_finding(redis, f"{subject}, rebuild", following, prefix)
    if finding.level is not Level.OK:
        yield finding
        return
    try:
        holder = RedisCheckpoints(redis, prefix).holder(f"rebuild:{following.name}")
    except CountersError as error:
        yield Finding(Level.FAIL, finding.subject, _line(error))
        return
    if holder is None:
        text = (
            f"begun, and nobody goes on with it; run counters rebuild {following.name}, or give it --abandon"
        )
        yield Finding(Level.WARN, finding.subject, text)
    else:
        yield Finding(Level.OK, finding.subject, f"to precision {following.precision} by {holder}")


def _task_findings(redis: AnyRedis, prefix: str) -> Iterator[Finding]:
    try:
        store = RedisCheckpoints(redis, prefix)
        rows, foreign = store.list(), store.foreign()
    except CountersError as error:
        yield Finding(Level.FAIL, "checkpoints", _line(error))
        return
    for name in foreign:
        text = f"field {name!r} is no task; delete that field of {{{prefix}}}:checkpoints from Redis"
        yield Finding(Level.WARN, "checkpoints", text)
    for row in rows:
        if row.paused_since is not None:
            text = (
                f"paused since {row.paused_since:%Y-%m-%d %H:%M} UTC; counters checkpoints resume {row.name}"
            )
            yield Finding(Level.WARN, f"task {row.name}", text)
        elif row.observed == DAMAGED:
            text = f"its checkpoint cannot be read; counters checkpoints delete {row.name}"
            yield Finding(Level.FAIL, f"task {row.name}", text)


def _keys_finding(redis: AnyRedis, subject: str, spec: CounterSpec, prefix: str) -> Finding:
    keys = spec.keys(prefix)
    pipeline = redis.pipeline(transaction=False)
    for key in keys:
        pipeline.type(key)
        pipeline.getrange(key, 0, 3)
    answers = pipeline.execute(raise_on_error=False)
    kinds = answers[::2]
    wrong = [
        f"{key} ({_text(kind)})"
        for key, kind, magic in zip(keys, kinds, answers[1::2], strict=True)
        if kind != b"none" and magic != b"HYLL"
    ]
    if wrong:
        return Finding(Level.FAIL, subject, f"{wrong[0]} is not a HyperLogLog; rename or delete that key")
    gone = kinds.count(b"none")
    if gone:
        text = f"{gone} of its {len(keys)} keys vanished; workers follow objects.on_vanished"
        return Finding(Level.FAIL, subject, text)
    return Finding(
        Level.OK, subject, f"precision {spec.precision}, {len(keys)} HyperLogLog keys, {spec.layout}"
    )


def _positions(redis: AnyRedis, settings: Settings) -> Generator[Finding, None, Positions]:
    key = f"{{{settings.redis.prefix}}}:offsets:{settings.journal.group_id}"
    stored = yield from _fields(redis, key)
    if stored is None:
        return None
    positions = {}
    for field, value in sorted(stored.items()):
        topic, colon, number = _text(field).rpartition(":")
        try:
            if colon:
                positions[Partition(topic, int(number))] = int(value)
        except ValueError:
            text = f"field {_text(field)!r} holds {_text(value)!r}, which is no position; delete that field"
            yield Finding(Level.FAIL, key, text)
    return positions


def _fields(redis: AnyRedis, key: str) -> Generator[Finding, None, Mapping[Any, Any] | None]:
    """The fields of a hash; None, with a finding, if the key holds something else or must not be read."""
    try:
        return redis.hgetall(key)
    except ResponseError as error:
        text = f"Redis refuses to read it ({_line(error)}); rename or delete that key, or set redis.prefix"
        yield Finding(Level.FAIL, key, text)
        return None


# The journal


def journal_findings(settings: Settings, positions: Positions, timeout: float) -> Iterator[Finding]:
    """Findings about brokers, topics and where the view stands in them, in about ``timeout`` seconds."""
    journal = settings.journal
    deadline = time.monotonic() + timeout
    reasons: list[str] = []
    config = {
        **shared_config(journal),
        "group.id": journal.group_id,
        "log_level": 0,
        "error_cb": lambda error: reasons.append(error.str()),
    }
    try:
        consumer = Consumer(config)
    except KafkaException as error:
        yield Finding(Level.FAIL, "journal", f"{_line(error)}; see journal.kafka")
        return
    try:
        metadata = consumer.list_topics(timeout=timeout)
        brokers = ", ".join(sorted(f"{one.host}:{one.port}" for one in metadata.brokers.values()))
        yield Finding(Level.OK, "brokers", brokers)
        yield from _topics_findings(consumer, settings, metadata, positions, deadline)
    except KafkaException as error:
        consumer.poll(0)  # hands over what went wrong in the background: refused, unknown host, bad password
        text = f"{journal.brokers} did not answer within {timeout:g} s: {(reasons or [_line(error)])[0]}"
        yield Finding(Level.FAIL, "brokers", f"{text}; set journal.brokers or journal.kafka")
    finally:
        consumer.close()


def _topics_findings(
    consumer: Consumer, settings: Settings, metadata: ClusterMetadata, positions: Positions, deadline: float
) -> Iterator[Finding]:
    journal = settings.journal
    wanted = [f"{journal.prefix}.{kind}" for kind in journal.object_types]
    found = sorted(name for name in metadata.topics if name.startswith(f"{journal.prefix}."))
    yield from _missing_topics(settings, wanted, found)
    for topic in wanted or found:
        if topic not in found:
            continue
        entry = metadata.topics[topic]
        if entry.error is not None:
            yield Finding(Level.FAIL, f"topic {topic}", str(entry.error))
            continue
        partitions = [Partition(topic, number) for number in sorted(entry.partitions)]
        yield from _topic_findings(consumer, settings, partitions, positions, deadline)


def _missing_topics(settings: Settings, wanted: list[str], found: list[str]) -> Iterator[Finding]:
    journal = settings.journal
    for topic in wanted:
        if topic not in found:
            yield Finding(Level.WARN, f"topic {topic}", "does not exist yet; it is read once it does")
    if not wanted and not found:
        yield Finding(
            Level.WARN, "topics", f"none below {journal.prefix}; set journal.prefix, or publish some"
        )
    for counter, sources in settings.objects.derived.items():
        for kind in sources:
            if journal.object_types and kind not in journal.object_types:
                text = f"is fed by {kind}, which journal.object_types leaves out"
                yield Finding(Level.WARN, f"counter {counter}", text)


def _topic_findings(
    consumer: Consumer, settings: Settings, partitions: list[Partition], positions: Positions, deadline: float
) -> Iterator[Finding]:
    """Loud findings per partition, then one line for the topic."""
    read = lag = 0
    known = positions or {}
    for one in partitions:
        left = max(0.1, deadline - time.monotonic())
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*one), timeout=left)
        except KafkaException as error:
            yield Finding(Level.FAIL, str(one), f"does not tell its watermarks: {_line(error)}")
            continue
        position = known.get(one)
        if position is not None:
            read += 1
            yield from position_findings(settings, one, position, low, high)
        lag += max(0, high - max(low, position or 0))
    text = f"{len(partitions)} partitions, {lag:,} records waiting"
    if positions is None:
        text += " at most (positions unknown)"
    elif read < len(partitions):
        text += f"; {len(partitions) - read} partitions never read by group {settings.journal.group_id}"
    yield Finding(Level.OK, f"topic {partitions[0].topic}", text)


def position_findings(
    settings: Settings, partition: Partition, position: int, low: int, high: int
) -> Iterator[Finding]:
    """A stored position that the broker does not have: records expired unread, or the topic is a new one."""
    journal = settings.journal
    if position < low:
        text = (
            f"position {position} is below the low watermark {low}: {low - position:,} records expired unread"
        )
        yield Finding(_level(journal.on_gap), str(partition), f"{text}; journal.on_gap is {journal.on_gap}")
    elif position > high:
        text = f"position {position} is above the high watermark {high}: the topic was created anew"
        yield Finding(
            _level(journal.on_reset), str(partition), f"{text}; journal.on_reset is {journal.on_reset}"
        )


def _level(policy: OnProblem) -> Level:
    return Level.FAIL if policy is OnProblem.STOP else Level.WARN


def _text(answer: bytes | str | Exception) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


def _line(error: BaseException) -> str:
    """The error in one line; Kafka wraps its own in another."""
    if isinstance(error, KafkaException) and error.args and hasattr(error.args[0], "str"):
        return str(error.args[0].str())
    return " ".join(str(error).split()) or type(error).__name__
