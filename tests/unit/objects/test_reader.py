"""What is read out of Redis, and what a damaged store costs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from published import GROUP, PREFIX, TOPICS, numbered, publish
from redis import Redis, RedisCluster, RedisError
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from counters.config import Layout
from counters.embedded import EmbeddedRedis, find_redis_server
from counters.errors import StoreUnavailable
from counters.objects.reader import FEW, CountsReader
from counters.objects.sketch import Mirror, hash_keys, locate, read_blob, write_blob
from counters.objects.spec import Count, CounterSpec
from journal_client.leash import LeashedProcess
from journal_client.pytest_plugin import wait_for

CONTENT = CounterSpec("content", precision=16)
FLAT = CounterSpec("origin", precision=14)


@pytest.fixture
def reader(redis_client: Redis) -> CountsReader:
    return CountsReader(redis_client, PREFIX, GROUP, TOPICS)


def by_name(reader: CountsReader) -> dict[str, Count]:
    return {count.name: count for count in reader.read()}


def test_a_value_is_the_sum_of_the_strata(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CONTENT, numbered(20_000))
    parts = [redis_client.pfcount(key) for key in CONTENT.keys(PREFIX)]
    [count] = reader.read()
    assert count.value == sum(parts)
    assert count.value == pytest.approx(20_000, rel=0.03)
    assert (count.standard_error, count.suspect, count.reason) == (CONTENT.standard_error, False, None)


def test_counters_are_ordered_by_name(redis_client: Redis, reader: CountsReader) -> None:
    for name in ("revision", "content", "directory"):
        publish(redis_client, CounterSpec(name, precision=14))
    assert [count.name for count in reader.read()] == ["content", "directory", "revision"]


def test_a_store_without_counters_has_no_counts(reader: CountsReader) -> None:
    assert reader.read() == []


def test_stamp_messages_and_the_time_of_reading_come_from_the_store(
    redis_client: Redis, reader: CountsReader
) -> None:
    stamp = datetime(2024, 2, 29, 12, 0, 0, 250_000, tzinfo=UTC)
    publish(redis_client, FLAT, [b"a"], messages=7, stamp=int(stamp.timestamp() * 1000))
    [count] = reader.read()
    assert (count.updated_at, count.messages) == (stamp, 7)
    assert abs(count.as_of - datetime.now(UTC)) < timedelta(seconds=30)


def test_a_derived_counter_has_no_messages(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CounterSpec("person", precision=14), [b"Ada"])
    assert reader.read()[0].messages is None


def test_the_flat_key_of_the_legacy_layout_is_read(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CounterSpec("content", 14, layout=Layout.LEGACY), [b"a", b"b"])
    assert redis_client.exists("content")
    assert reader.read()[0].value == 2


def test_an_empty_counter_is_zero_and_not_suspect(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CONTENT)
    [count] = reader.read()
    assert (count.value, count.suspect) == (0, False)


def test_a_vanished_counter_is_not_zero(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CONTENT, numbered(100))
    redis_client.delete(*CONTENT.keys(PREFIX))
    [count] = reader.read()
    assert (count.value, count.suspect, count.reason) == (None, True, "vanished")


def test_a_vanished_stratum_makes_the_rest_suspect(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CONTENT, numbered(100))
    redis_client.delete(CONTENT.keys(PREFIX)[0])
    [count] = reader.read()
    assert (count.value, count.suspect, count.reason) == (75, True, "vanished: 1 of 4 strata")


@pytest.mark.parametrize("foreign", [b"not a sketch", b"HYLL\x00" + b"\xff" * 40])
def test_a_key_that_is_no_sketch_costs_its_own_counter_only(
    redis_client: Redis, reader: CountsReader, foreign: bytes
) -> None:
    publish(redis_client, CONTENT, numbered(100))
    publish(redis_client, FLAT, numbered(10))
    redis_client.set(CONTENT.keys(PREFIX)[1], foreign)
    counts = by_name(reader)
    assert counts["origin"].value == 10
    assert counts["content"].value is None
    assert not counts["content"].suspect
    assert (counts["content"].reason or "").startswith("Redis refuses to count content:")


@pytest.mark.parametrize(
    "entry",
    [
        b"{",
        b"\xff\xfe",
        b'{"name": "other"}',
        b'{"name": "content", "precision": 60}',
        b'{"name": "content", "precision": "many"}',
    ],
)
def test_a_damaged_registry_entry_costs_its_own_counter_only(
    redis_client: Redis, reader: CountsReader, entry: bytes
) -> None:
    publish(redis_client, FLAT, [b"a"])
    redis_client.hset(f"{{{PREFIX}}}:registry", "content", entry)
    counts = by_name(reader)
    assert counts["origin"].value == 1
    assert counts["content"].value is None
    assert counts["content"].reason


@pytest.mark.parametrize("stamp", [b"yesterday", b"", b"\xff", b"9" * 30])
def test_a_damaged_stamp_costs_that_time_only(
    redis_client: Redis, reader: CountsReader, stamp: bytes
) -> None:
    publish(redis_client, FLAT, [b"a"])
    redis_client.hset(f"{{{PREFIX}}}:stamps", FLAT.name, stamp)
    [count] = reader.read()
    assert (count.value, count.updated_at, count.reason) == (1, None, None)


def test_a_damaged_number_of_messages_costs_that_number_only(
    redis_client: Redis, reader: CountsReader
) -> None:
    publish(redis_client, FLAT, [b"a"])
    redis_client.hset(f"{{{PREFIX}}}:offsets:{GROUP}", f"{TOPICS}.{FLAT.name}", b"many")
    [count] = reader.read()
    assert (count.value, count.messages, count.reason) == (1, None, None)


def test_a_count_that_fell_is_suspect_until_it_recovers(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, FLAT, numbered(50))
    assert reader.read()[0].value == 50
    redis_client.delete(*FLAT.keys(PREFIX))
    publish(redis_client, FLAT, numbered(10))
    [fallen] = reader.read()
    assert (fallen.value, fallen.suspect, fallen.reason) == (10, True, "fell from 50 to 10")
    publish(redis_client, FLAT, numbered(50))
    [recovered] = reader.read()
    assert (recovered.value, recovered.suspect, recovered.reason) == (50, False, None)


def test_a_wiped_store_is_not_an_empty_one(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, FLAT, numbered(50))
    reader.read()
    redis_client.flushdb()
    [gone] = reader.read()
    assert (gone.name, gone.value, gone.suspect, gone.reason) == ("origin", None, True, "vanished")


def test_a_new_generation_may_be_smaller(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, FLAT, numbered(50))
    reader.read()
    publish(redis_client, CounterSpec("origin", precision=14, generation=2), numbered(10))
    assert not reader.read()[0].suspect


def test_unchanged_counters_cost_two_round_trips_however_many_they_are(
    redis_client: Redis, reader: CountsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        publish(redis_client, CounterSpec(f"type-{number}", precision=18), [b"a"])
    reader.read()
    opened: list[bool] = []
    pipeline = redis_client.pipeline

    def counted(transaction: bool = True) -> object:
        opened.append(transaction)
        return pipeline(transaction=transaction)

    monkeypatch.setattr(redis_client, "pipeline", counted)
    assert len(reader.read()) == 5
    assert opened == [False, False]


def test_a_registry_of_another_type_is_one_clear_error(redis_client: Redis, reader: CountsReader) -> None:
    redis_client.set(f"{{{PREFIX}}}:registry", "x")
    with pytest.raises(StoreUnavailable, match=r"refuses to read \{counters\}:registry: WRONGTYPE"):
        reader.read()


def test_a_store_that_is_gone_is_one_clear_error(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    server.kill()
    with (
        Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(StoreUnavailable, match="Redis does not answer"),
    ):
        CountsReader(client, PREFIX, GROUP, TOPICS).read()


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """A cluster of one node that holds every slot."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, bus = one.getsockname()[1], two.getsockname()[1]
    command = [
        str(find_redis_server()),
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--cluster-port",
        str(bus),
    ]
    command += ["--cluster-enabled", "yes", "--dir", str(tmp_path), "--save", ""]
    server = LeashedProcess(command, log=tmp_path / "redis.log")
    try:
        with Redis(port=port) as node:
            wait_for(lambda: _served(node, "PING"), message="the cluster node did not start")
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            wait_for(lambda: _served(node, "EXISTS", "any"), message="the cluster did not form")
        with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)]) as cluster:
            yield cluster
    finally:
        server.close()


def _served(node: Redis, *command: str) -> bool:
    with suppress(RedisError):
        node.execute_command(*command)
        return True
    return False


def test_a_cluster_is_read_like_a_single_server(redis_cluster: RedisCluster) -> None:
    publish(redis_cluster, CONTENT, numbered(100), messages=120)
    publish(redis_cluster, FLAT, numbered(10))
    redis_cluster.set(FLAT.keys(PREFIX)[0], b"foreign")
    counts = by_name(CountsReader(redis_cluster, PREFIX, GROUP, TOPICS))
    assert (counts["content"].value, counts["content"].messages) == (100, 120)
    assert counts["origin"].value is None


@pytest.mark.parametrize("precision", [18, 20])
def test_small_counters_are_not_rounded_down_stratum_by_stratum(
    redis_client: Redis, reader: CountsReader, precision: int
) -> None:
    spec = CounterSpec("content", precision)
    published = 80 * spec.strata
    errors = []
    for seed in range(8):
        redis_client.flushdb()
        keys = [b"%d %d" % (seed, n) for n in range(published)]
        mirror = Mirror(precision)
        mirror.raise_to(*locate(hash_keys(keys), precision))
        for stratum, key in enumerate(spec.keys(PREFIX)):
            redis_client.set(key, write_blob(mirror.registers(stratum)))
        redis_client.hset(f"{{{PREFIX}}}:registry", spec.name, msgspec.json.encode(spec))
        [count] = CountsReader(redis_client, PREFIX, GROUP, TOPICS).read()
        assert count.value is not None
        errors.append((count.value - published) / published)
    # Rounded stratum by stratum, the 0.2 of 80 keys that hide behind another would be missing everywhere:
    # 0.25 %.
    assert abs(sum(errors) / len(errors)) < 0.0012


def test_a_difference_within_rounding_is_no_fall(redis_client: Redis, reader: CountsReader) -> None:
    publish(redis_client, CONTENT, numbered(FEW * CONTENT.strata + 1_000))
    [before] = reader.read()
    lowest = CONTENT.keys(PREFIX)[0]
    registers = read_blob(redis_client.get(lowest))
    registers[registers.argmin() if registers.min() else registers.nonzero()[0][0]] = 0
    redis_client.set(lowest, write_blob(registers))
    [after] = reader.read()
    assert (after.value, after.suspect) == (before.value, False)
