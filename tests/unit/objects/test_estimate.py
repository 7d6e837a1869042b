"""Registers to a number."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from counters.objects.sketch import Mirror, estimate, estimate_strata, hash_keys, locate


def registers_after(keys: float, precision: int, seed: int) -> NDArray[np.uint8]:
    """Flat registers as ``keys`` different keys leave them; beyond a million without drawing each.

    The largest rank of n keys is at most r with probability (1 - 2^-r)^n. With a Poisson number of keys per
    register that becomes exp(-mean * 2^-r), from which the rank is drawn; the number of keys itself is then
    exact to 1 / sqrt(keys), which only many keys make small beside the error of the sketch.
    """
    rng = np.random.default_rng(seed)
    if keys > 1e6:
        at_most = np.exp(-keys / (1 << precision) * 0.5 ** np.arange(51))
        return np.searchsorted(at_most, rng.random(1 << precision)).astype(np.uint8)
    mirror = Mirror(precision)
    mirror.raise_to(*locate(rng.integers(0, 2**64, int(keys), np.uint64), precision))
    return flat(mirror)


def flat(mirror: Mirror) -> NDArray[np.uint8]:
    return np.concatenate([mirror.registers(n) for n in range(1 << (mirror.precision - 14))])


def relative_rmse(errors: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def test_an_empty_sketch_counts_nothing() -> None:
    assert estimate(np.zeros(16_384, np.uint8)) == 0


def test_full_registers_have_an_end_too() -> None:
    assert estimate(np.full(16_384, 51, np.uint8)) == 2**64


@pytest.mark.parametrize("keys", [1, 2, 50])
def test_a_few_keys_are_counted_exactly(keys: int) -> None:
    mirror = Mirror(18)
    mirror.raise_to(*locate(hash_keys([b"key %d" % n for n in range(keys)]), 18))
    assert estimate_strata(flat(mirror)) == keys


@pytest.mark.parametrize("keys", [1e3, 1e5, 1e7, 1e9, 1e12])
def test_one_stratum_is_right_within_its_standard_error_at_every_size(keys: float) -> None:
    errors = [estimate(registers_after(keys, 14, seed)) / keys - 1 for seed in range(60)]
    assert relative_rmse(errors) < 0.0105
    assert abs(np.mean(errors)) < 0.0035


@pytest.mark.parametrize(("keys", "precision"), [(1e6, 18), (1e8, 18), (1e12, 18), (1e12, 20)])
def test_strata_add_up_to_a_smaller_error(keys: float, precision: int) -> None:
    errors = [estimate_strata(registers_after(keys, precision, seed)) / keys - 1 for seed in range(12)]
    assert relative_rmse(errors) < 1.4 * 0.008125 / 2 ** ((precision - 14) / 2)


@pytest.mark.parametrize(("precision", "bound"), [(14, 0.010), (16, 0.0055), (18, 0.0025)])
def test_hashed_keys_are_counted_within_the_standard_error(precision: int, bound: float) -> None:
    keys_per_set, errors = 50_000, []
    for number in range(10):
        everything = np.random.default_rng(number).bytes(20 * keys_per_set)
        hashes = hash_keys([everything[at : at + 20] for at in range(0, len(everything), 20)])
        mirror = Mirror(precision)
        mirror.raise_to(*locate(hashes, precision))
        errors.append(estimate_strata(flat(mirror)) / keys_per_set - 1)
    assert relative_rmse(errors) <= bound


def test_more_keys_never_count_less() -> None:
    mirror, before = Mirror(14), 0
    hashes = hash_keys([b"%d" % n for n in range(100_000)])
    for part in np.array_split(hashes, 200):
        mirror.raise_to(*locate(part, 14))
        now = estimate(mirror.registers(0))
        assert now >= before
        before = now
