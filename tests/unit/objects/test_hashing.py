"""Keys to hashes, hashes to registers."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counters.objects.sketch import hash_keys, locate, murmur64a

# Computed by an implementation in C. A register of Redis shows only the lower bits of a hash; the strata need
# the upper ones too.
KNOWN = [
    (b"", 0xD8DFEA6585BC9732),
    (b"a", 0x53D2470A9B43B1A7),
    (b"1234567", 0x85563DB163632857),
    (b"12345678", 0x95EBB86389132953),
    (b"123456789", 0x217532CB09F2A44D),
    (bytes(range(236, 256)), 0x7FA18627C706550E),
    (b"https://example.org/a-repository", 0xFA854EACE4092F87),
]


@pytest.mark.parametrize(("key", "hashed"), KNOWN)
def test_one_key_hashes_to_all_64_bits_of_murmurhash64a(key: bytes, hashed: int) -> None:
    assert murmur64a(key) == hashed


def keys_of(lengths: list[int]) -> list[bytes]:
    rng = random.Random(20)
    return [rng.randbytes(length) for length in lengths]


@given(st.lists(st.binary(max_size=100), max_size=60))
@example([b""] * 40)
@example([b"", *[b"12345678"] * 40])
def test_many_keys_hash_as_each_alone(keys: list[bytes]) -> None:
    assert hash_keys(keys).tolist() == [murmur64a(key) for key in keys]


@given(st.integers(0, 70), st.randoms(use_true_random=False))
def test_equally_long_keys_hash_as_each_alone(length: int, rng: random.Random) -> None:
    keys = [rng.randbytes(length) for _ in range(40)]
    assert hash_keys(keys).tolist() == [murmur64a(key) for key in keys]


@pytest.mark.parametrize("long_ones", [1, 15, 16, 17, 40])
def test_a_few_or_many_long_keys_among_short_ones_hash_as_each_alone(long_ones: int) -> None:
    keys = keys_of([*range(100), *[3_001 + n for n in range(long_ones)], 65_536])
    random.Random(1).shuffle(keys)
    assert hash_keys(keys).tolist() == [murmur64a(key) for key in keys]


def test_no_keys_have_no_hashes() -> None:
    assert hash_keys([]).shape == (0,)
    assert hash_keys([]).dtype == np.uint64


def test_one_long_key_costs_no_memory_for_the_others() -> None:
    keys = keys_of([20] * 5_000 + [21, 65_536])
    tracemalloc.start()
    hash_keys(keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("hashed", "rank"),
    [
        (0xFFFF_FFFF_FFFF_FFFF, 1),
        (1 << 14, 1),
        (1 << 15, 2),
        (1 << 45, 32),
        (1 << 63, 50),
        (0x3FFF, 51),
        (0, 51),
    ],
)
def test_the_rank_is_the_position_of_the_lowest_bit_above_the_index(hashed: int, rank: int) -> None:
    _, ranks = locate(np.array([hashed], np.uint64), 14)
    assert ranks.tolist() == [rank]
    assert ranks.dtype == np.uint8


@given(st.integers(0, 2**64 - 1), st.integers(14, 20))
def test_the_stratum_is_the_top_bits_and_the_index_the_bottom_bits(hashed: int, precision: int) -> None:
    registers, _ = locate(np.array([hashed], np.uint64), precision)
    stratum = hashed >> (64 - (precision - 14))
    assert registers.tolist() == [stratum * 16_384 + hashed % 16_384]


@given(st.integers(0, 2**64 - 1), st.integers(15, 20))
def test_the_rank_does_not_depend_on_the_precision(hashed: int, precision: int) -> None:
    # Redis computes it on its own and knows nothing of strata.
    array = np.array([hashed], np.uint64)
    assert locate(array, precision)[1] == locate(array, 14)[1]
