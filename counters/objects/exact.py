"""Distinct keys counted exactly, on disk: what an estimate is measured against.

A *spool* is a directory with one append-only file, the *log*: every key in full, beside its hash. Its steps:

1. ``add`` appends a batch to the log. ``token`` then names the state of the spool: one length.
2. ``open`` with a token cuts off what came after it. A batch written and not recorded is not there twice.
3. ``count`` deals the keys of a log that is larger than ``max_bucket_bytes`` into 256 buckets, by the top
   byte of their hash, and those of a bucket which is still larger by the next byte. Equal keys meet in one
   bucket, so that the count is the sum over the buckets.

The hash only says which keys to compare: two keys are one if all their bytes are equal. ``count`` only reads
the log, so that one which fails or is killed can be repeated.

Memory is a few times ``max_bucket_bytes``, whatever the number of keys and however often some repeat, because
repetitions are left out where keys are dealt. Only different keys that agree in all 64 bits of the hash stay
together, and nobody has many of them without having searched for them. Disk: the bytes of each key read and
8 more, 12 where a batch has keys of several lengths; ``count`` needs up to as much again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from counters.errors import CountersError, InputError, StoreError
from counters.objects.sketch import Hashes, Indices

_LOG: Final = "keys.spool"
_BUCKET: Final = "keys.spool.bucket-"

_START: Final = 16
"""Random bytes a log starts with. They tell the spool of a token from a later one in the same directory."""

_HEADER: Final = struct.Struct("<IiI")
"""Of a block: number of keys, their length or ``_MIXED``, bytes that follow. A CRC-32 of all ends it."""
_MIXED: Final = -1

_BLOCK_BYTES: Final = 4 << 20
_BLOCK_OVERHEAD: Final = 1 << 10
"""Bytes a block costs in memory beside its keys, rounded up."""

_BUCKET_BITS: Final = 8
_HASH_BITS: Final = 64


# --- Keys in memory and as a block --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys, joined in ``data``; their hashes and their lengths in bytes, both of shape ``(n,)``."""

    hashes: Hashes
    lengths: NDArray[np.uint32]
    data: bytes | memoryview

    @classmethod
    def joined(cls, parts: Sequence[_Keys]) -> _Keys:
        if len(parts) == 1:
            return parts[0]
        hashes = np.concatenate([part.hashes for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(hashes, lengths, b"".join([part.data for part in parts]))

    @property
    def size(self) -> int:
        """Bytes of the keys and their hashes."""
        return self.hashes.nbytes + len(self.data)

    @property
    def width(self) -> int:
        """The length of all keys, or ``_MIXED``."""
        first = self.lengths[0]
        return int(first) if (self.lengths == first).all() else _MIXED

    def distinct(self, bits: int) -> Indices:
        """Positions of the different keys, each once. All hashes agree in their top ``bits`` bits; the keys
        come in the order of the next 8.
        """
        # Hash and position in one integer: sorting values is several times faster than sorting indirectly.
        # The lowest bits of the hash give way to the position.
        room = np.uint64(len(self.hashes).bit_length())
        order = self.hashes << np.uint64(bits) >> room << room
        order |= np.arange(len(order), dtype=np.uint64)
        order.sort()
        hashes = order >> room
        positions = (order & ((np.uint64(1) << room) - np.uint64(1))).astype(np.intp)
        alike = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
        same = self._equal(positions[alike - 1], positions[alike])
        kept = np.ones(len(order), np.bool_)
        kept[alike[same]] = False
        if not same.all():
            # Different keys that look alike lie in any order: one may repeat another than its neighbour.
            unclear = np.flatnonzero(np.isin(hashes, hashes[alike[~same]]))
            kept[unclear] = False
            places = dict(zip(self._slices(positions[unclear]), unclear.tolist(), strict=True))
            kept[list(places.values())] = True
        return positions[kept]

    def take(self, positions: Indices) -> _Keys:
        """The keys at these positions, in this order."""
        mixed = self.width == _MIXED
        data = b"".join(self._slices(positions)) if mixed else self._rows(positions).tobytes()
        return _Keys(self.hashes[positions], self.lengths[positions], data)

    def between(self, bounds: NDArray[np.intp]) -> Iterator[_Keys]:
        """The keys from each bound (a position) to the next."""
        ends = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))[bounds].tolist()
        data = memoryview(self.data)  # its parts are no copies
        for (first, start), (last, end) in pairwise(zip(bounds.tolist(), ends, strict=True)):
            yield _Keys(self.hashes[first:last], self.lengths[first:last], data[start:end])

    def encode(self) -> bytes:
        """One block."""
        width = self.width
        lengths = self.lengths.astype("<u4").tobytes() if width == _MIXED else b""
        body = b"".join((lengths, self.hashes.astype("<u8").tobytes(), self.data))
        block = _HEADER.pack(len(self.hashes), width, len(body)) + body
        return block + zlib.crc32(block).to_bytes(4, "little")

    @classmethod
    def decode(cls, count: int, width: int, body: memoryview) -> _Keys:
        at = 4 * count if width == _MIXED else 0
        lengths = np.frombuffer(body, "<u4", count) if width == _MIXED else np.full(count, width, np.uint32)
        return cls(np.frombuffer(body, "<u8", count, at), lengths, body[at + 8 * count :])

    def _equal(self, left: Indices, right: Indices) -> NDArray[np.bool_]:
        if self.width != _MIXED:
            return np.asarray((self._rows(left) == self._rows(right)).all(axis=1))
        pairs = zip(self._slices(left), self._slices(right), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))

    def _rows(self, positions: Indices) -> NDArray[np.uint8]:
        rows = np.frombuffer(self.data, np.uint8).reshape(len(self.lengths), self.width)
        return np.take(rows, positions, axis=0)  # twice as fast as rows[positions]

    def _slices(self, positions: Indices) -> Iterator[bytes]:
        ends = np.cumsum(self.lengths, dtype=np.int64)[positions]
        starts = ends - self.lengths[positions]
        return (bytes(self.data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True))


# --- Files of blocks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Blocks from byte ``start`` to ``end`` of a file. Their hashes agree in the top ``bits`` bits."""

    path: Path
    start: int
    end: int
    bits: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start

    def portions(self, limit: int) -> Iterator[_Keys]:
        """The blocks in order, joined up to about ``limit`` bytes; a larger one stays alone."""
        portion: list[_Keys] = []
        size = 0
        for block in self._blocks():
            if portion and size + block.size > limit:
                yield _Keys.joined(portion)
                portion, size = [], 0
            portion.append(block)
            size += block.size + _BLOCK_OVERHEAD
        if portion:
            yield _Keys.joined(portion)

    def deal(self, keys: _Keys) -> None:
        """Append each different one of the keys to its bucket of 8 bits more."""
        kept = keys.take(keys.distinct(self.bits))
        shift = np.uint64(_HASH_BITS - self.bits - _BUCKET_BITS)
        numbers = kept.hashes >> shift & np.uint64((1 << _BUCKET_BITS) - 1)
        bounds = np.searchsorted(numbers, np.arange((1 << _BUCKET_BITS) + 1, dtype=np.uint64))
        with _trouble(self.path.parent, StoreError):
            for number, part in enumerate(kept.between(bounds)):
                if len(part.hashes):
                    # Opened for each write, because 256 open files can be all that a process may have.
                    with self._path_of(f"{number:02x}").open("ab") as file:
                        file.write(part.encode())

    def dealt(self) -> list[_Bucket]:
        """The buckets that ``deal`` filled."""
        with _trouble(self.path.parent, StoreError):
            paths = sorted(self.path.parent.glob(self._path_of("??").name))
            return [_Bucket(path, 0, path.stat().st_size, self.bits + _BUCKET_BITS) for path in paths]

    def _path_of(self, number: str) -> Path:
        return self.path.with_name((self.path.name if self.bits else _BUCKET) + number)

    def _blocks(self) -> Iterator[_Keys]:
        with _trouble(self.path.parent, StoreError), self.path.open("rb") as file:
            at = file.seek(self.start)
            while at < self.end:
                header = file.read(_HEADER.size).ljust(_HEADER.size, b"\0")
                count, width, size = _HEADER.unpack(header)
                body = memoryview(file.read(min(size, self.end - at)))
                if not count or zlib.crc32(body, zlib.crc32(header)).to_bytes(4, "little") != file.read(4):
                    raise StoreError(f"{self.path} is damaged at byte {at}; start the exact count again")
                at = file.tell()
                yield _Keys.decode(count, width, body)


@contextmanager
def _trouble(directory: Path, kind: type[CountersError]) -> Iterator[None]:
    """Turn an error of the system into one line for the operator."""
    try:
        yield
    except OSError as error:
        in_use = isinstance(error, BlockingIOError)
        fault = "is in use by another process" if in_use else f"cannot be used: {error.strerror}"
        raise kind(f"the spool in {directory} {fault}; name another directory with --spool") from error


# --- The spool ----------------------------------------------------------------------------------------------


class _Token(msgspec.Struct, frozen=True):
    spool: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * _START}}}$")]
    bytes: Annotated[int, msgspec.Meta(ge=_START)]
    keys: Annotated[int, msgspec.Meta(ge=0)]


class Spool:
    """The keys of one exact count, in a directory. Made by ``open``; one process at a time has it."""

    def __init__(self, directory: Path, log: int, token: _Token, max_bucket_bytes: int) -> None:
        self._directory = directory
        self._log = log
        self._token = token
        self._max_bucket_bytes = max_bucket_bytes

    @classmethod
    def open(
        cls, directory: Path, token: Mapping[str, object] | None = None, max_bucket_bytes: int = 32 << 20
    ) -> Self:
        """The spool in ``directory`` at the state that ``token`` names; without one a new, empty spool.

        What was written after that state is cut off, and all that an earlier spool left behind.

        Raises:
            InputError: the directory is missing, not writable, or in use by another spool.
            StoreError: the directory does not hold what the token names.
        """
        with _trouble(directory, InputError):
            log = os.open(directory / _LOG, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _trouble(directory, InputError):
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                state = _start(log) if token is None else _resume(directory, log, token)
            spool = cls(directory, log, state, max_bucket_bytes)
            spool._remove_buckets()
        except BaseException:
            os.close(log)
            raise
        return spool

    @property
    def read(self) -> int:
        """Keys added, repetitions included."""
        return self._token.keys

    @property
    def token(self) -> dict[str, str | int]:
        """The state of the spool, to store as JSON (about 90 bytes) once a batch is added."""
        return {name: getattr(self._token, name) for name in _Token.__struct_fields__}

    def add(self, keys: Sequence[bytes], hashes: Hashes) -> None:
        """Append a batch. It is in the file when this returns, and survives a kill of the process.

        Args:
            keys: of any lengths.
            hashes: what ``hash_keys`` answers for them.

        Raises:
            StoreError: it cannot be written. The state stays as it was.
        """
        if not keys:
            return
        lengths = np.fromiter(map(len, keys), np.uint32, len(keys))
        # Blocks bound what has to be in memory to read a log, however large its batches were.
        filled = np.cumsum(lengths.astype(np.int64) + hashes.itemsize) // _BLOCK_BYTES
        bounds = np.concatenate(([0], np.flatnonzero(np.diff(filled)) + 1, [len(keys)]))
        end = self._token.bytes
        with _trouble(self._directory, StoreError):
            for part in _Keys(hashes, lengths, b"".join(keys)).between(bounds):
                end = _write_at(self._log, part.encode(), end)
        self._token = msgspec.structs.replace(self._token, bytes=end, keys=self.read + len(keys))

    def count(self, progress: Callable[[float], None] = lambda _: None) -> int:
        """How many different keys were added. The log stays as it is; more can be added, and counted again.

        Args:
            progress: told the part of the work that is done, rising to 1. What it raises ends the count.

        Raises:
            StoreError: the buckets cannot be written, or the log is damaged.
        """
        log = _Bucket(self._directory / _LOG, _START, self._token.bytes, 0)
        try:
            count = self._count(log, progress, 0.0, 1.0)
        finally:
            self._remove_buckets()
        progress(1.0)
        return count

    def close(self) -> None:
        """Let go of the directory. Everything stays in it."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def remove(self) -> None:
        """Close, and delete the files of the spool. The directory and what else is in it stay."""
        self._remove_buckets()
        with _trouble(self._directory, StoreError):
            (self._directory / _LOG).unlink(missing_ok=True)
        self.close()

    def _count(self, bucket: _Bucket, progress: Callable[[float], None], start: float, end: float) -> int:
        """The different keys of a bucket. Its share of the progress is from ``start`` to ``end``."""
        if bucket.size <= self._max_bucket_bytes or bucket.bits == _HASH_BITS:
            # Joined twice: beside the few keys of a small batch, a block is large.
            portions = list(bucket.portions(self._max_bucket_bytes))
            return len(_Keys.joined(portions).distinct(bucket.bits)) if portions else 0
        half, done = (end - start) / 2, 0
        for keys in bucket.portions(self._max_bucket_bytes):
            bucket.deal(keys)
            done += keys.size
            progress(start + half * min(1.0, done / bucket.size))
        parts = bucket.dealt()
        count, at, scale = 0, start + half, half / sum(part.size for part in parts)
        for part in parts:
            after = min(end, at + part.size * scale)
            count += self._count(part, progress, at, after)
            part.path.unlink(missing_ok=True)
            at = after
            progress(at)
        return count

    def _remove_buckets(self) -> None:
        with _trouble(self._directory, StoreError):
            for path in self._directory.glob(_BUCKET + "*"):
                path.unlink(missing_ok=True)


def _start(log: int) -> _Token:
    """Make the log that of a new spool."""
    identity = os.urandom(_START)
    os.ftruncate(log, 0)
    return _Token(identity.hex(), _write_at(log, identity, 0), 0)


def _resume(directory: Path, log: int, token: Mapping[str, object]) -> _Token:
    """Cut the log down to what the token names."""
    try:
        state = msgspec.convert(token, _Token)
    except msgspec.ValidationError as error:
        raise StoreError(f"no recorded state of a spool: {error}; start the exact count again") from error
    size = os.fstat(log).st_size
    if size < state.bytes:
        fault = f"has {size} bytes, not the {state.bytes} recorded"
    elif os.pread(log, _START, 0) != bytes.fromhex(state.spool):
        fault = "is that of another count"
    else:
        os.ftruncate(log, state.bytes)
        return state
    raise StoreError(
        f"the spool in {directory} {fault}; start the exact count again, or name its directory with --spool"
    )


def _write_at(log: int, block: bytes, at: int) -> int:
    """Write all of the block. Answers where it ends.

    At a position, not at the end: what a failed write left is overwritten by the next.
    """
    rest = memoryview(block)
    while rest:
        written = os.pwrite(log, rest, at)
        at += written
        rest = rest[written:]
    return at
