"""The mirror filters keys and loses none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from counters.objects.sketch import Mirror, locate

Batch = tuple[NDArray[np.intp], NDArray[np.uint8]]


def located(count: int, precision: int, seed: int) -> Batch:
    return locate(np.random.default_rng(seed).integers(0, 2**64, count, np.uint64), precision)


def flat(mirror: Mirror) -> list[int]:
    strata = 1 << (mirror.precision - 14)
    return [int(rank) for stratum in range(strata) for rank in mirror.registers(stratum)]


def batch(pairs: list[tuple[int, int]]) -> Batch:
    return np.array([p[0] for p in pairs], np.intp), np.array([p[1] for p in pairs], np.uint8)


# Few registers, so that keys meet.
pairs = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 16_383, 16_384, 32_767]), st.integers(1, 51)), max_size=40
)


@given(st.lists(pairs, max_size=5))
def test_sending_only_the_raising_keys_raises_the_same_registers(
    batches: list[list[tuple[int, int]]],
) -> None:
    everything, filtered = Mirror(15), Mirror(15)
    for registers, ranks in map(batch, batches):
        everything.raise_to(registers, ranks)
        positions = filtered.raising(registers, ranks)
        filtered.raise_to(registers[positions], ranks[positions])
    assert flat(filtered) == flat(everything)


@given(pairs)
def test_one_key_per_register_is_sent(pairs: list[tuple[int, int]]) -> None:
    registers, ranks = batch(pairs)
    sent = registers[Mirror(15).raising(registers, ranks)].tolist()
    assert sent == sorted(set(registers.tolist()))


@pytest.mark.parametrize("precision", [14, 18, 20])
def test_nothing_is_sent_twice(precision: int) -> None:
    mirror = Mirror(precision)
    registers, ranks = located(50_000, precision, seed=3)
    positions = mirror.raising(registers, ranks)
    mirror.raise_to(registers[positions], ranks[positions])
    assert len(mirror.raising(registers, ranks)) == 0


def test_asking_what_rises_raises_nothing() -> None:
    mirror = Mirror(14)
    mirror.raising(*located(1_000, 14, seed=4))
    assert not mirror.registers(0).any()


def test_no_keys_raise_nothing() -> None:
    mirror = Mirror(14)
    assert mirror.raising(*batch([])).shape == (0,)


def test_loaded_registers_stop_the_keys_they_hold_and_no_others() -> None:
    mirror = Mirror(15)
    stratum = np.zeros(16_384, np.uint8)
    stratum[7] = 5
    mirror.load(1, stratum)
    registers, ranks = batch([(7, 5), (16_384 + 7, 5), (16_384 + 7, 6), (16_384 + 8, 1)])
    assert mirror.raising(registers, ranks).tolist() == [0, 2, 3]


def test_loading_can_lower_the_bound() -> None:
    mirror = Mirror(14)
    mirror.raise_to(*batch([(7, 5)]))
    mirror.load(0, np.zeros(16_384, np.uint8))
    assert len(mirror.raising(*batch([(7, 5)]))) == 1


def test_among_a_million_known_keys_few_new_ones_are_sent() -> None:
    mirror = Mirror(18)
    mirror.raise_to(*located(1_000_000, 18, seed=5))
    registers, ranks = located(10_000, 18, seed=6)
    assert 0 < len(mirror.raising(registers, ranks)) < 2_500
