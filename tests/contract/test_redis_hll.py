"""What we compute is what a real Redis computes: hashes, registers, strings, counts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray
from redis import Redis

from counters.objects.sketch import Mirror, estimate, hash_keys, locate, read_blob, write_blob


def registers_of(keys: list[bytes], precision: int = 14) -> NDArray[np.uint8]:
    mirror = Mirror(precision)
    mirror.raise_to(*locate(hash_keys(keys), precision))
    return np.concatenate([mirror.registers(n) for n in range(1 << (precision - 14))])


def add(redis: Redis, name: str, keys: list[bytes]) -> None:
    for start in range(0, len(keys), 5_000):
        redis.pfadd(name, *keys[start : start + 5_000])


def stored(redis: Redis, name: str) -> bytes:
    blob = redis.get(name)
    assert isinstance(blob, bytes)
    return blob


def random_keys(count: int, seed: int, shortest: int = 20, longest: int = 20) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(shortest, longest)) for _ in range(count)]


def test_keys_of_every_length_raise_the_same_registers(redis_client: Redis) -> None:
    keys = [random.Random(n).randbytes(n) for n in range(300)] + random_keys(3, 9, 65_536, 65_536)
    add(redis_client, "sketch", keys)
    blob = stored(redis_client, "sketch")
    assert blob[4] == 1
    assert np.array_equal(read_blob(blob), registers_of(keys))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 20, 32, 65_536])
def test_each_length_alone_raises_the_same_registers(redis_client: Redis, length: int) -> None:
    keys = random_keys(40, length, length, length)
    add(redis_client, "sketch", keys)
    assert np.array_equal(read_blob(stored(redis_client, "sketch")), registers_of(keys))


@pytest.mark.parametrize(("count", "encoding"), [(0, 1), (1, 1), (500, 1), (20_000, 0), (200_000, 0)])
def test_sparse_and_dense_strings_are_read(redis_client: Redis, count: int, encoding: int) -> None:
    keys = random_keys(count, count)
    redis_client.pfadd("sketch")
    add(redis_client, "sketch", keys)
    blob = stored(redis_client, "sketch")
    assert blob[4] == encoding
    assert np.array_equal(read_blob(blob), registers_of(keys))


@pytest.mark.parametrize("count", [0, 1, 50, 1_000, 30_000, 300_000])
def test_our_count_is_the_count_of_redis(redis_client: Redis, count: int) -> None:
    keys = random_keys(count, count + 1, 1, 40)
    redis_client.pfadd("sketch")
    add(redis_client, "sketch", keys)
    assert estimate(registers_of(keys)) == redis_client.pfcount("sketch")


@pytest.mark.parametrize("mean", [0.01, 1, 30, 1e3, 1e6, 1e9, 1e14])
def test_a_string_we_wrote_is_counted_by_redis_as_by_us(redis_client: Redis, mean: float) -> None:
    uniform = np.random.default_rng(7).random(16_384)
    registers = np.searchsorted(np.exp(-mean * 0.5 ** np.arange(51)), uniform).astype(np.uint8)
    redis_client.set("sketch", write_blob(registers))
    assert redis_client.pfcount("sketch") == estimate(registers)


def test_redis_goes_on_counting_in_a_string_we_wrote(redis_client: Redis) -> None:
    before, after = random_keys(5_000, 1), random_keys(5_000, 2)
    redis_client.set("sketch", write_blob(registers_of(before)))
    add(redis_client, "sketch", after)
    assert np.array_equal(read_blob(stored(redis_client, "sketch")), registers_of(before + after))


@pytest.mark.parametrize("precision", [14, 15, 18, 20])
def test_sending_only_raising_keys_leaves_every_stratum_as_sending_all(
    redis_client: Redis, precision: int
) -> None:
    mirror, strata = Mirror(precision), 1 << (precision - 14)
    first, second = random_keys(5_000, 1), random_keys(5_000, 2)
    for keys in (first, second, first):
        registers, ranks = locate(hash_keys(keys), precision)
        raising = mirror.raising(registers, ranks)
        pipeline = redis_client.pipeline(transaction=False)
        for position in raising.tolist():
            pipeline.pfadd(f"sketch:{registers[position] >> 14}", keys[position])
        # Redis says 1 if a register changed: no key was sent in vain.
        assert pipeline.execute() == [1] * len(raising)
        mirror.raise_to(registers[raising], ranks[raising])
    found = [read_blob(stored(redis_client, f"sketch:{n}")) for n in range(strata)]
    assert np.array_equal(np.concatenate(found), registers_of(first + second, precision))
