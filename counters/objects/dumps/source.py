"""Bytes of a dump in whole lines, from a file, a compressed file, or a pipe."""

from __future__ import annotations

import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from gzip import GzipFile
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from counters.errors import InputError
from counters.objects.dumps.model import Cursor, Fingerprint

Place: TypeAlias = Path | Literal["-"]
"""A file, or standard input."""

MAX_LINE: Final = 1 << 20
"""Bytes of the longest line that is looked at, its end included."""

_HEAD: Final = 64 * 1024
"""Bytes at its beginning by which a file is known again."""

_TAIL: Final = 4096
"""Bytes before a cursor by which it is known that the file is still the one that was read so far."""

_ENDLESS: Final = 64 * MAX_LINE
"""Bytes after which the end of a line is not looked for any longer."""

_PATIENCE: Final = 1.0
"""Seconds in which a pipe may fill a block; then what is there must do."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"

_Result = TypeVar("_Result")


def open_file(place: Place) -> BufferedReader:
    """The file, or standard input, to read bytes from.

    Raises:
        InputError: it cannot be opened.
    """
    if place == "-":
        return sys.stdin.buffer  # type: ignore[return-value]
    try:
        return place.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{place}: {reason}; name a file with keys") from error


def take_fingerprint(file: BufferedReader) -> Fingerprint:
    """Size and a hash of the beginning."""
    size = os.fstat(file.fileno()).st_size
    return {"size": size, "head": _hash_head(file, size)}


def has_grown_from(file: BufferedReader, earlier: Fingerprint) -> bool:
    """Whether the file had this fingerprint when it was as long as that says."""
    size = earlier.get("size")
    if not isinstance(size, int) or size > os.fstat(file.fileno()).st_size:
        return False
    return earlier.get("head") == _hash_head(file, size)


def _hash_head(file: BufferedReader, size: int) -> str:
    return blake2b(os.pread(file.fileno(), min(size, _HEAD), 0), digest_size=16).hexdigest()


class Source:
    """Whole lines of a file or a pipe, and how many there were so far.

    A file goes on at a byte; if gzip compressed it, at a byte of what it holds, and all before is read again
    to get there. A pipe cannot go back: of one that is started again, the lines used already are skipped.

    Attributes:
        name: for messages.
        size: bytes; None of a pipe or compressed data.
        line: lines before where reading goes on.
        ended: nothing is left to read.
    """

    def __init__(self, place: Place) -> None:
        """Open it.

        Raises:
            InputError: it cannot be opened or read.
        """
        self.name = "standard input" if place == "-" else str(place)
        self._place = place
        self.line = 0
        self.ended = False
        self._offset = 0
        self._raw = open_file(place)
        self._seekable = place != "-" and self._raw.seekable()
        magic = self._guard(lambda: self._raw.peek(len(_ZSTD)))
        if magic.startswith(_ZSTD):
            self.close()
            raise InputError(f"{self.name}: is compressed by zstd; pipe the output of zstd -dc into --from -")
        compressed = magic.startswith(_GZIP)
        self._file: BufferedReader | GzipFile = GzipFile(fileobj=self._raw) if compressed else self._raw
        self.fingerprint: Fingerprint = take_fingerprint(self._raw) if self._seekable else {}
        size = self.fingerprint.get("size")
        self.size = size if isinstance(size, int) and not compressed else None

    @property
    def cursor(self) -> dict[str, int]:
        """Where reading goes on."""
        if not self._seekable:
            return {"line": self.line}
        at = {"offset": self._offset, "line": self.line}
        return at if self.size is None else {**at, "tail": self._hash_tail(self._offset)}

    def done(self, cursor: Cursor) -> int:
        """Bytes before ``cursor``; of a pipe, lines."""
        return cursor.get("offset" if self._seekable else "line", 0)

    def continues(self, earlier: Fingerprint) -> bool:
        """Whether this is the file of that fingerprint, maybe grown. A pipe is taken on trust."""
        return has_grown_from(self._raw, earlier) if self._seekable else "size" not in earlier

    def move(self, cursor: Cursor) -> None:
        """Go where ``cursor`` says.

        Raises:
            InputError: a pipe is past it already, compressed data is broken before it, or the file is not the
                one that was read so far.
        """
        if cursor == self.cursor:
            return
        line = cursor.get("line", 0)
        if self._seekable:
            offset = cursor.get("offset", 0)
            tail = cursor.get("tail")
            reached = self._guard(lambda: self._file.seek(offset))
            if reached != offset or (
                tail is not None and self.size is not None and tail != self._hash_tail(offset)
            ):
                raise InputError(
                    f"{self.name}: is not the file that was read up to byte {offset}; give it another "
                    "--name, or begin anew with counters checkpoints rewind"
                )
            self._offset, self.line, self.ended = offset, line, False
            return
        if line < self.line:
            raise InputError(f"{self.name}: cannot go back to line {line + 1}; start the pipe again")
        while self.line < line and not self.ended:
            self.read_line()

    def read(self, size: int) -> bytes:
        """At least ``size`` bytes up to the end of a line; less of a slow pipe or at the end, last nothing.

        Of a line longer than ``MAX_LINE`` there is enough to see that it is, maybe without its end.
        """
        at_start = self._offset == 0
        block, self.ended = self._guard(lambda: self._read_block(size))
        self._offset += len(block)
        if block and not block.endswith(b"\n"):
            block += self._read_to_line_end()
        self.line += block.count(b"\n") + (block[-1:] not in (b"\n", b""))
        return block.removeprefix(_BYTE_ORDER_MARK) if at_start else block

    def read_line(self) -> bytes:
        """The next line, as ``read`` has it; nothing at the end."""
        line = self._read_to_line_end()
        self.line += bool(line)
        return line

    def follow(self, lines: list[bytes], start: int) -> Iterator[bytes]:
        """``lines`` from ``start`` on, then those to come, which are also put at the end of ``lines``."""
        for index in range(start, len(lines)):
            yield lines[index]
        while line := self.read_line():
            lines.append(line)
            yield line

    def close(self) -> None:
        """Let go of the file; standard input stays open."""
        if self._place != "-":
            self._raw.close()

    def _read_to_line_end(self) -> bytes:
        line = piece = self._guard(lambda: self._file.readline(MAX_LINE + 1))
        self._offset += len(piece)
        start = self._offset
        while len(piece) > MAX_LINE and not piece.endswith(b"\n"):
            if self._offset - start > _ENDLESS:
                raise InputError(
                    f"{self.name}: line {self.line + 1} is longer than {_ENDLESS} bytes; "
                    "this is no dump of keys"
                )
            piece = self._guard(lambda: self._file.readline(MAX_LINE + 1))
            self._offset += len(piece)
        self.ended = self.ended or not piece.endswith(b"\n")
        return line

    def _read_block(self, size: int) -> tuple[bytes, bool]:
        """Up to ``size`` bytes, and whether the end came before them."""
        if self._seekable or isinstance(self._file, GzipFile):
            block = self._file.read(size)
            return block, len(block) < size
        pieces: list[bytes] = []
        left = size
        deadline = time.monotonic() + _PATIENCE
        while left > 0:
            if pieces and not select.select([self._file], [], [], max(0, deadline - time.monotonic()))[0]:
                break
            if not (piece := self._file.read1(left)):
                return b"".join(pieces), True
            pieces.append(piece)
            left -= len(piece)
            if time.monotonic() > deadline:
                break
        return b"".join(pieces), False

    def _hash_tail(self, offset: int) -> int:
        """Of the bytes before ``offset``: a number, as everything in a cursor is."""
        start = max(0, offset - _TAIL)
        tail = os.pread(self._raw.fileno(), offset - start, start)
        return int.from_bytes(blake2b(tail, digest_size=6).digest())

    def _guard(self, read: Callable[[], _Result]) -> _Result:
        try:
            return read()
        except EOFError:
            raise InputError(f"{self.name}: the compressed data is cut off after line {self.line}") from None
        except (OSError, zlib.error) as error:
            raise InputError(f"{self.name}: cannot be read after line {self.line}: {error}") from error
