"""The string Redis stores, read and written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from counters.errors import SketchError
from counters.objects.sketch import read_blob, write_blob

SPARSE_HEADER = b"HYLL\x01" + bytes(11)
EMPTY_SPARSE = SPARSE_HEADER + b"\x7f\xff"


def some_registers(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 52, 16_384, np.uint8)


def read_or_refuse(blob: bytes) -> None:
    try:
        registers = read_blob(blob)
    except SketchError:
        return
    assert registers.shape == (16_384,)
    assert registers.max() <= 51


@given(st.integers(0, 2**32))
def test_written_registers_are_read_back(seed: int) -> None:
    registers = some_registers(seed)
    assert np.array_equal(read_blob(write_blob(registers)), registers)


def test_register_i_is_in_bits_6i_to_6i_plus_5() -> None:
    registers = some_registers(1)
    as_number = int.from_bytes(write_blob(registers)[16:], "little")
    assert [as_number >> 6 * i & 63 for i in range(16_384)] == registers.tolist()


def test_a_written_blob_says_that_its_cached_cardinality_is_stale() -> None:
    blob = write_blob(np.zeros(16_384, np.uint8))
    assert len(blob) == 12_304
    assert blob[15] & 0x80


def test_sparse_runs_are_read() -> None:
    # 64 zeros; 3 x 32; 16,314 zeros; 1 x 1, then 2 more zeros in short runs.
    runs = bytes([0x3F, 0x80 | 31 << 2 | 2, 0x40 | (16_313 >> 8), 16_313 & 0xFF, 0x80, 0x00, 0x00])
    expected = np.zeros(16_384, np.uint8)
    expected[64:67] = 32
    expected[64 + 3 + 16_314] = 1
    assert np.array_equal(read_blob(SPARSE_HEADER + runs), expected)


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (b"", "not a HyperLogLog"),
        (b"a plain string of some length", "not a HyperLogLog"),
        (b"HYLL\x00", "not a HyperLogLog"),
        (b"HYLL\x02" + bytes(11), "encoding 2"),
        (write_blob(np.zeros(16_384, np.uint8))[:-1], "12303 bytes"),
        (write_blob(np.zeros(16_384, np.uint8)) + b"\0", "12305 bytes"),
        (write_blob(np.zeros(16_384, np.uint8))[:-1] + b"\xff", "register 16383 holds 63"),
        (SPARSE_HEADER, "cover 0 of 16384"),
        (EMPTY_SPARSE + b"\x00", "ends at register 16385"),
        (EMPTY_SPARSE + b"\x80", "ends at register 16385"),
        (EMPTY_SPARSE + b"\x40\x00", "ends at register 16385"),
        (SPARSE_HEADER + b"\x7f\xfe", "cover 16383 of 16384"),
        (EMPTY_SPARSE[:-1], "cut off"),
        (SPARSE_HEADER + b"\x7f\xff" * 100_000, "ends at register 32768"),
    ],
)
def test_a_damaged_blob_is_refused_with_its_damage(blob: bytes, complaint: str) -> None:
    with pytest.raises(SketchError, match=complaint) as refusal:
        read_blob(blob)
    assert len(str(refusal.value).splitlines()) == 1


@given(st.integers(0, 2**32), st.data())
def test_random_damage_to_a_dense_blob_is_refused_or_read_within_bounds(
    seed: int, data: st.DataObject
) -> None:
    blob = bytearray(write_blob(some_registers(seed)))
    for at in data.draw(st.lists(st.integers(0, len(blob) - 1), max_size=5)):
        blob[at] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(blob[: data.draw(st.integers(0, len(blob)))]))


@given(st.binary(max_size=400))
@example(b"\x7f\xff\x7f\xff")
def test_random_sparse_runs_are_refused_or_read_within_bounds(runs: bytes) -> None:
    read_or_refuse(SPARSE_HEADER + runs)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_or_read_within_bounds(blob: bytes) -> None:
    read_or_refuse(blob)


def test_registers_larger_than_any_rank_are_not_written() -> None:
    registers = np.zeros(16_384, np.uint8)
    registers[9] = 52
    with pytest.raises(SketchError, match="register 9 holds 52"):
        write_blob(registers)


def test_a_wrong_number_of_registers_is_not_written() -> None:
    with pytest.raises(SketchError, match=r"\(16383,\)"):
        write_blob(np.zeros(16_383, np.uint8))
