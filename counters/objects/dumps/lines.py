"""Dumps whose records are lines, or a few lines each."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Final, Protocol

from counters.objects.dumps.model import BadRecord, Chunk, Cursor, Failures, Fingerprint
from counters.objects.dumps.source import MAX_LINE, Source

_MAX_BLOCK: Final = 8 << 20
"""Bytes read at once, whatever the limit of a chunk."""

_FIRST_GUESS: Final = 40.0
"""Bytes per key before any was read."""


_PIECE: Final = 64
"""Lines tried at once where a block holds a bad record, so that it slows down few others."""


class Records(Protocol):
    """A format: how records lie in lines, and where the key is."""

    def complete(self, block: bytes, source: Source) -> bytes:
        """The block, and what ``source`` has of its last record. Nothing, if a record is a line."""
        return block

    def decode_block(self, block: bytes) -> list[bytes]:
        """The keys of a block of whole lines that starts where a record does.

        The fast way, which may give up whenever it likes, and must where ``decode`` would fail or read on.

        Raises:
            ValueError: it gave up.
        """

    def decode(self, lines: Iterator[bytes]) -> bytes | None:
        """The key of the record that starts with the next line, None if that is no record (a blank line).

        Takes as many lines as the record has, with their ends, so where it ends depends on nothing before it.

        Raises:
            BadRecord: there is no key; the record after it is to be looked for from its second line on.
        """


class LinesDump:
    """A dump of whole lines, read in blocks: a bad record costs its block the fast way, and itself.

    Args:
        source: gives the lines; read up to where the first record may start.
        records: the format.
        fingerprint: by what the dump is known, beside its source.
    """

    def __init__(self, source: Source, records: Records, fingerprint: Fingerprint) -> None:
        self._source = source
        self._records = records
        self._settings = dict(fingerprint)
        self._start = source.cursor
        self._bytes_per_key = _FIRST_GUESS

    @property
    def total(self) -> int | None:
        """Bytes; None of a pipe or compressed data."""
        return self._source.size

    @property
    def fingerprint(self) -> Fingerprint:
        """Form, size and beginning."""
        return {**self._settings, **self._source.fingerprint}

    def continues(self, earlier: Fingerprint) -> bool:
        """Whether cursors of the dump with that fingerprint are good for this one, which may be longer."""
        same = all(earlier.get(name) == value for name, value in self._settings.items())
        return same and self._source.continues(earlier)

    def done(self, cursor: Cursor) -> int:
        """Bytes before ``cursor``; of a pipe, lines."""
        return self._source.done(cursor)

    def read(self, cursor: Cursor, limit: int) -> Chunk:
        """About ``limit`` keys from ``cursor`` on.

        Raises:
            InputError: the source cannot be read on.
        """
        self._source.move(cursor or self._start)
        first_line = self._source.line + 1
        size = int(min(max(1, limit) * self._bytes_per_key, _MAX_BLOCK))
        block = self._records.complete(self._source.read(max(1, size)), self._source)
        failures = Failures()
        keys = self._decode(block) if block else []
        if keys is None:
            keys = self._decode_in_pieces(block, first_line, failures)
        if keys:
            self._bytes_per_key = len(block) / len(keys)
        end = None if self._source.ended else self._source.cursor
        return Chunk(keys, end, failures.count, failures.problems)

    def close(self) -> None:
        """Let go of the file."""
        self._source.close()

    def _decode(self, block: bytes) -> list[bytes] | None:
        """All keys of the block, or None if that cannot be had the fast way."""
        try:
            return None if _has_long_line(block) else self._records.decode_block(block)
        except ValueError:
            return None

    def _decode_in_pieces(self, block: bytes, first_line: int, failures: Failures) -> list[bytes]:
        lines = BytesIO(block).readlines()
        keys: list[bytes] = []
        index = 0
        while index < len(lines):
            piece = lines[index : index + _PIECE]
            decoded = self._decode(b"".join(piece))
            if decoded is not None:
                keys += decoded
                index += len(piece)
                continue
            end = index + len(piece)
            while index < end:
                taken = _Taken(self._source.follow(lines, index))
                try:
                    if (key := self._decode_one(lines[index], taken)) is not None:
                        keys.append(key)
                    index += taken.count
                except BadRecord as error:
                    failures.add(f"line {first_line + index}", error, lines[index])
                    index += 1
        return keys

    def _decode_one(self, line: bytes, lines: Iterator[bytes]) -> bytes | None:
        if len(line) > MAX_LINE:
            raise BadRecord(f"longer than {MAX_LINE} bytes")
        return self._records.decode(lines)


class _Taken:
    """Lines, and how many of them were taken."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.count = 0

    def __iter__(self) -> _Taken:
        return self

    def __next__(self) -> bytes:
        line = next(self._lines)
        self.count += 1
        return line


def _has_long_line(block: bytes) -> bool:
    start = 0
    while len(block) - start > MAX_LINE:
        end = block.rfind(b"\n", start, start + MAX_LINE)
        if end < 0:
            return True
        start = end + 1
    return False
