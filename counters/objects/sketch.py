"""The HyperLogLog of Redis, computed outside Redis, many keys at a time.

Pure: arrays in, arrays out. The steps of counting a key are the functions of this file, in order:

1. ``hash_keys``: a key becomes 64 bits (MurmurHash64A, the hash Redis uses).
2. ``locate``: the 64 bits become a register and a rank.
3. ``Mirror.raising``: which keys can raise a register at all; only those are worth sending to Redis.
4. ``estimate``: registers become a number, the same number that PFCOUNT answers.

``read_blob`` and ``write_blob`` translate between registers and the string Redis stores.

A counter of precision 14+b is spread over 2^b *strata*, each one Redis HyperLogLog of 16,384 registers,
chosen by the top b bits of the hash. Registers of a counter are numbered *flat*: ``stratum * 16384 + index``.

Words: a *register* holds the largest *rank* seen, 0 for none; a rank is 1..51, the number of trailing zeros
of the hash above its index bits, plus one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from counters.errors import SketchError

INDEX_BITS: Final = 14
REGISTERS: Final = 1 << INDEX_BITS
"""Registers of one stratum."""

MAX_RANK: Final = 64 - INDEX_BITS + 1

_SEED: Final = 0xADC83B19
_M: Final = 0xC6A4A7935BD1E995
_R: Final = 47
_MASK: Final = (1 << 64) - 1

_FEW: Final = 16
"""A call into numpy costs as much as about this many keys in plain Python: fewer are not worth a call."""

Hashes = NDArray[np.uint64]
Registers = NDArray[np.uint8]
Indices = NDArray[np.intp]


# --- 1. keys to hashes --------------------------------------------------------------------------------------


def murmur64a(key: bytes) -> int:
    """MurmurHash64A (Austin Appleby, public domain) of one key with Redis's seed, in plain Python."""
    hashed = _absorb_blocks(_SEED ^ (len(key) * _M & _MASK), key)
    if tail := len(key) & 7:
        hashed = (hashed ^ int.from_bytes(key[-tail:], "little")) * _M & _MASK
    hashed = (hashed ^ (hashed >> _R)) * _M & _MASK
    return hashed ^ (hashed >> _R)


def hash_keys(keys: Sequence[bytes]) -> Hashes:
    """MurmurHash64A of every key, in order: uint64 of shape ``(len(keys),)``.

    Keys may have any lengths. Memory beyond the result is a copy of the keys and a few words per key, however
    unequal the lengths are. Object ids, which are all equally long, take a faster path.
    """
    count = len(keys)
    if count <= _FEW:
        return np.fromiter(map(murmur64a, keys), np.uint64, count)
    lengths = np.fromiter(map(len, keys), np.int64, count)
    if (lengths == lengths[0]).all():
        return _hash_equally_long(keys, int(lengths[0]))
    return _hash_mixed(keys, lengths)


def _hash_equally_long(keys: Sequence[bytes], length: int) -> Hashes:
    # Eight spare bytes, because the tail is read as a whole word.
    joined = b"".join([*keys, bytes(8)])
    count, blocks = len(keys), length >> 3
    hashed = np.full(count, _SEED ^ (length * _M & _MASK), np.uint64)
    for block in range(blocks):
        words = np.ndarray((count,), "<u8", joined, offset=8 * block, strides=(length,))
        _absorb(hashed, words.astype(np.uint64))
    if tail := length & 7:
        words = np.ndarray((count,), "<u8", joined, offset=8 * blocks, strides=(length,))
        hashed ^= words & np.uint64((1 << 8 * tail) - 1)
        hashed *= np.uint64(_M)
    return _finish(hashed)


def _hash_mixed(keys: Sequence[bytes], lengths: NDArray[np.int64]) -> Hashes:
    """Longest key first: the keys which still have a block to absorb are always a prefix of the array."""
    joined = b"".join([*keys, bytes(8)])
    # The word at every byte offset: a view, nothing is copied until it is indexed.
    words = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))
    order = np.argsort(-lengths)
    starts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    blocks = lengths >> 3
    hashed = lengths.astype(np.uint64) * np.uint64(_M) ^ np.uint64(_SEED)

    # remaining[i]: how many keys have a block i.
    common = int(blocks[_FEW])
    remaining = np.searchsorted(-blocks, -np.arange(1, common + 1), side="right")
    for block, active in enumerate(remaining.tolist()):
        _absorb(hashed[:active], words[starts[:active] + 8 * block])
    # What only a few much longer keys have.
    for position in np.flatnonzero(blocks[:_FEW] > common).tolist():
        key = keys[order[position]]
        hashed[position] = _absorb_blocks(int(hashed[position]), key[8 * common :])

    tails = lengths & 7
    tailed = np.flatnonzero(tails)
    bits = (tails[tailed] << 3).astype(np.uint64)
    last = words[(starts + 8 * blocks)[tailed]] & ((np.uint64(1) << bits) - np.uint64(1))
    hashed[tailed] = (hashed[tailed] ^ last) * np.uint64(_M)

    result = np.empty_like(hashed)
    result[order] = _finish(hashed)
    return result


def _absorb(hashed: Hashes, words: Hashes) -> None:
    """Absorb one word into each hash. Changes both arrays in place."""
    words *= np.uint64(_M)
    words ^= words >> np.uint64(_R)
    words *= np.uint64(_M)
    hashed ^= words
    hashed *= np.uint64(_M)


def _absorb_blocks(hashed: int, key: bytes) -> int:
    """Absorb the whole 8-byte words of ``key`` into one hash."""
    for start in range(0, len(key) & ~7, 8):
        word = int.from_bytes(key[start : start + 8], "little") * _M & _MASK
        word = (word ^ (word >> _R)) * _M & _MASK
        hashed = (hashed ^ word) * _M & _MASK
    return hashed


def _finish(hashed: Hashes) -> Hashes:
    hashed ^= hashed >> np.uint64(_R)
    hashed *= np.uint64(_M)
    hashed ^= hashed >> np.uint64(_R)
    return hashed


# --- 2. hashes to registers ---------------------------------------------------------------------------------


def locate(hashes: Hashes, precision: int) -> tuple[Indices, Registers]:
    """The flat register (0..2^precision - 1) and the rank (1..51) of every hash.

    The stratum is the top ``b = precision - 14`` bits, because Redis takes the index from the bottom of the
    hash and searches the rank upwards from there. A choice by bits of the index would leave most registers of
    a stratum empty. The top bits do belong to the rank too, but decide it only if all 50-b bits below them
    are zero: for one key in 2^(50-b), so that among 10^12 keys one register in a thousand strata is touched.
    The strata are in practice independent sketches of disjoint sets of keys.
    """
    bits = precision - INDEX_BITS
    registers = hashes & np.uint64(REGISTERS - 1)
    if bits:
        registers |= hashes >> np.uint64(64 - bits) << np.uint64(INDEX_BITS)
    # A bit above the hash bounds the rank of a hash without any other bit.
    # w ^ (w - 1) has a one for each trailing zero of w, and one more: their number is the rank.
    above = hashes >> np.uint64(INDEX_BITS) | np.uint64(1 << (64 - INDEX_BITS))
    ranks = np.bitwise_count(above ^ (above - np.uint64(1)))
    return registers.astype(np.intp), ranks


# --- 3. registers known to be reached -----------------------------------------------------------------------


class Mirror:
    """A lower bound of the registers of one counter, held where the keys arrive.

    It only filters: a key that cannot raise the bound cannot raise the register either. Raise it only after
    the write to Redis succeeded: a bound that is too low sends some keys in vain, one too high loses keys.
    """

    __slots__ = ("_registers", "precision")

    def __init__(self, precision: int) -> None:
        self.precision = precision
        self._registers: Registers = np.zeros(1 << precision, np.uint8)

    def raising(self, registers: Indices, ranks: Registers) -> Indices:
        """Positions in the batch of the keys to send: per register that rises, one key of the largest rank.

        Args:
            registers, ranks: what ``locate`` answered for the batch, with the precision of this mirror.

        Returns:
            Positions ordered by register, and so by stratum. Empty if nothing rises.
        """
        survivors = np.flatnonzero(ranks > self._registers[registers])
        # Register, rank and position in one integer: sorting values is several times faster than sorting
        # indirectly. 20 + 6 bits leave 38 for the position.
        order = registers[survivors] << 44 | ranks[survivors].astype(np.int64) << 38 | survivors
        order.sort()
        last_of_register = np.ones(len(order), np.bool_)
        np.not_equal(order[1:] >> 44, order[:-1] >> 44, out=last_of_register[:-1])
        return order[last_of_register] & ((1 << 38) - 1)

    def raise_to(self, registers: Indices, ranks: Registers) -> None:
        """Raise the bound by keys which Redis has. Registers may repeat."""
        np.maximum.at(self._registers, registers, ranks)

    def load(self, stratum: int, registers: Registers) -> None:
        """Replace the bound of one stratum by registers read from Redis (shape ``(16384,)``)."""
        self.registers(stratum)[:] = registers

    def registers(self, stratum: int) -> Registers:
        """The bound of one stratum: a view of shape ``(16384,)``, valid as long as this mirror."""
        return self._registers[stratum * REGISTERS : (stratum + 1) * REGISTERS]


# --- 4. registers to a number -------------------------------------------------------------------------------


def estimate(registers: Registers) -> int:
    """How many different keys one stratum has seen: the value PFCOUNT computes from the same registers.

    Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6. Relative
    standard error 0.8125 %, without bias from 0 up to 2^60 keys or so.
    """
    return math.floor(_estimate(registers) + 0.5)  # as Redis rounds: halves away from zero


def _estimate(registers: Registers) -> float:
    counts = np.bincount(registers, minlength=MAX_RANK + 1).tolist()
    z = REGISTERS * _tau(1 - counts[MAX_RANK] / REGISTERS)
    for rank in range(MAX_RANK - 1, 0, -1):
        z = (z + counts[rank]) * 0.5
    z += REGISTERS * _sigma(counts[0] / REGISTERS)
    if z == 0:  # Every register is at its end; there are no more different hashes than this.
        return float(1 << 64)
    return 0.5 / math.log(2) * REGISTERS * REGISTERS / z


def estimate_strata(registers: Registers) -> int:
    """How many different keys a counter has seen: the sum over its strata of flat ``registers``, rounded
    once.

    PFCOUNT rounds every stratum. With some 80 keys in each, the 0.2 keys that hide behind another are rounded
    away everywhere alike, and 64 strata then lack 12 keys of 5,000: more than their standard error.
    """
    return math.floor(sum(map(_estimate, registers.reshape(-1, REGISTERS))) + 0.5)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3


# --- The string Redis stores --------------------------------------------------------------------------------

_MAGIC: Final = b"HYLL"
_DENSE, _SPARSE = 0, 1
_HEADER_SIZE: Final = 16
_DENSE_SIZE: Final = _HEADER_SIZE + REGISTERS * 6 // 8
# The last eight bytes cache the cardinality. Redis believes them unless their top bit says they are stale.
_DENSE_HEADER: Final = _MAGIC + bytes([_DENSE, 0, 0, 0]) + bytes(7) + b"\x80"


def read_blob(blob: bytes) -> Registers:
    """The registers of a HyperLogLog as Redis stores it, dense or sparse: a new array of shape ``(16384,)``.

    Raises:
        SketchError: the bytes are not a HyperLogLog, or a damaged one. Whatever they are, nothing is touched
            out of bounds and no more than one array of registers is allocated.
    """
    if len(blob) < _HEADER_SIZE or blob[:4] != _MAGIC:
        raise SketchError(f"not a HyperLogLog: {len(blob)} bytes starting with {blob[:4]!r}, not {_MAGIC!r}")
    if blob[4] == _SPARSE:
        return _read_sparse(blob)
    if blob[4] != _DENSE:
        raise SketchError(f"damaged HyperLogLog: encoding {blob[4]}, known are {_DENSE} and {_SPARSE}")
    if len(blob) != _DENSE_SIZE:
        raise SketchError(f"damaged HyperLogLog: {len(blob)} bytes, a dense one has {_DENSE_SIZE}")
    first, second, third = np.frombuffer(blob, np.uint8, offset=_HEADER_SIZE).reshape(-1, 3).T
    registers = np.empty((REGISTERS // 4, 4), np.uint8)
    registers[:, 0] = first & 0x3F
    registers[:, 1] = first >> 6 | (second & 0x0F) << 2
    registers[:, 2] = second >> 4 | (third & 0x03) << 4
    registers[:, 3] = third >> 2
    flat = registers.reshape(REGISTERS)
    _refuse_large_ranks(flat)
    return flat


def write_blob(registers: Registers) -> bytes:
    """The dense string (12,304 bytes) that Redis reads as these registers, cached cardinality marked stale.

    Raises:
        SketchError: there are not 16,384 registers, or one is larger than any rank.
    """
    if registers.shape != (REGISTERS,):
        raise SketchError(f"registers of shape {registers.shape}, a HyperLogLog has ({REGISTERS},)")
    _refuse_large_ranks(registers)
    a, b, c, d = registers.astype(np.uint8, copy=False).reshape(-1, 4).T
    packed = np.empty((REGISTERS // 4, 3), np.uint8)
    packed[:, 0] = a | b << 6
    packed[:, 1] = b >> 2 | c << 4
    packed[:, 2] = c >> 4 | d << 2
    return _DENSE_HEADER + packed.tobytes()


def sketch_of(registers: Indices, ranks: Registers) -> bytes:
    """A HyperLogLog with just these registers set. They are flat numbers within one stratum, none twice."""
    own = np.zeros(REGISTERS, np.uint8)
    own[registers & (REGISTERS - 1)] = ranks
    return write_blob(own)


def _refuse_large_ranks(registers: Registers) -> None:
    if (largest := int(registers.max())) > MAX_RANK:
        where = int(registers.argmax())
        raise SketchError(
            f"damaged HyperLogLog: register {where} holds {largest}, no rank exceeds {MAX_RANK}"
        )


def _read_sparse(blob: bytes) -> Registers:
    """Runs: ``00xxxxxx`` x+1 zeros; ``01xxxxxx yyyyyyyy`` 14 bits + 1 zeros; ``1vvvvvxx`` x+1 times v+1."""
    registers = np.zeros(REGISTERS, np.uint8)
    at, covered = _HEADER_SIZE, 0
    while at < len(blob):
        code = blob[at]
        if code & 0x80:
            value, run = (code >> 2 & 0x1F) + 1, (code & 0x03) + 1
        elif code & 0x40:
            at += 1
            if at == len(blob):
                raise SketchError("damaged HyperLogLog: its last run is cut off")
            value, run = 0, ((code & 0x3F) << 8 | blob[at]) + 1
        else:
            value, run = 0, code + 1
        at += 1
        # Checked for every run, before it is written: the sum alone would be known too late.
        if covered + run > REGISTERS:
            raise SketchError(f"damaged HyperLogLog: a run ends at register {covered + run} of {REGISTERS}")
        if value:
            registers[covered : covered + run] = value
        covered += run
    if covered != REGISTERS:
        raise SketchError(f"damaged HyperLogLog: its runs cover {covered} of {REGISTERS} registers")
    return registers
