"""Rows of separated fields, some of them quoted, perhaps over several lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Final, Self

from counters.errors import InputError
from counters.objects.dumps.lines import Records
from counters.objects.dumps.model import BadRecord, Encoding
from counters.objects.dumps.source import Source
from counters.objects.dumps.values import Keys

_MAX_LINES: Final = 100
"""Lines in which the end of a row is looked for."""


class CsvRows(Records):
    """Blank lines are no records. Bytes are treated as Latin-1 on the way, which no byte is lost by.

    A quote that is not closed costs its line: after 128 KiB, or at the end, the csv module gives up, and
    the following lines are looked at again.

    Args:
        column: index of the field with the key.
        width: fields a row must have; None: enough to have the column.
        delimiter: between fields.
        keys: how texts stand for keys.
    """

    def __init__(self, column: int, width: int | None, delimiter: str, keys: Keys) -> None:
        self._column = column
        self._width = width
        self._delimiter = delimiter
        self._separator = delimiter.encode()
        self._keys = keys

    @classmethod
    def open(cls, source: Source, field: str | None, delimiter: str, encoding: Encoding) -> Self:
        """Find the column of ``field``: a name in the header row, which is read, or a number from 1 on, if
        there is no header row. Without one, the file must have a single column.

        Raises:
            InputError: there is no such column, or what should be the name of the only one is a key.
        """
        keys = Keys(encoding)
        if field is not None and field.isdecimal():
            if int(field) < 1:
                raise InputError(f"--field {field}: columns are numbered from 1")
            return cls(int(field) - 1, None, delimiter, keys)
        names = _read_header(source, delimiter)
        column = find_column(source.name, names, field) if names else 0
        if names and field is None and encoding is Encoding.HEX and _is_key(keys, names[0]):
            raise InputError(f"{source.name}: its first line is a key, not a name; give --field 1")
        return cls(column, len(names), delimiter, keys)

    def complete(self, block: bytes, source: Source) -> bytes:
        """Up to the end of the row, as far as counting quotes can tell: else the fast way must give up."""
        if block.count(b'"') % 2 == 0:
            return block
        parts = [block]
        for _ in range(_MAX_LINES):
            parts.append(source.read_line())
            if not parts[-1] or parts[-1].count(b'"') % 2:
                break
        return b"".join(parts)

    def decode_block(self, block: bytes) -> list[bytes]:
        """Lines are only cut where nothing is quoted."""
        if b'"' in block:
            return self._keys.decode_all(self._texts_of_quoted(block))
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        lines = block.removesuffix(b"\n").split(b"\n")
        column, width, separator = self._column, self._width, self._separator
        if width is None:
            texts = [row[column] for line in lines if len(row := line.split(separator)) > column]
        else:
            texts = [row[column] for line in lines if len(row := line.split(separator)) == width]
        if len(texts) < len(lines):
            raise BadRecord("a row has another number of fields")
        return self._keys.decode_all(texts)

    def decode(self, lines: Iterator[bytes]) -> bytes | None:
        """One line, or as many as the quotes in it enclose."""
        row = _read_row(lines, self._delimiter)
        if not row:
            return None
        if self._width is not None and len(row) != self._width:
            raise BadRecord(f"{len(row)} fields, not {self._width}")
        if len(row) <= self._column:
            raise BadRecord(f"{len(row)} fields, no {self._column + 1}.")
        return self._keys.decode(row[self._column])

    def _texts_of_quoted(self, block: bytes) -> list[bytes]:
        if b"\r" in block.replace(b"\r\n", b""):
            raise BadRecord("a carriage return within a line")
        rows = csv.reader(
            StringIO(block.decode("latin-1"), newline="\n"), strict=True, delimiter=self._delimiter
        )
        column, width = self._column, self._width
        texts: list[bytes] = []
        try:
            for row in rows:
                if len(row) <= column or (width is not None and len(row) != width):
                    raise BadRecord("another number of fields")
                texts.append(row[column].encode("latin-1"))
        except csv.Error as error:
            raise BadRecord(str(error)) from None
        return texts


def find_column(dump: str, names: list[str], field: str | None) -> int:
    """Index of the column ``field``; without one, of the only column.

    Raises:
        InputError: there is none, or there are several to choose from.
    """
    known = ", ".join(names)
    if field is None:
        if len(names) == 1:
            return 0
        raise InputError(f"{dump}: has the columns {known}; set --field to the one that holds the keys")
    if field not in names:
        raise InputError(f"{dump}: has no column {field!r} but {known}; set --field")
    return names.index(field)


def _is_key(keys: Keys, text: str) -> bool:
    try:
        keys.decode(text)
    except BadRecord:
        return False
    return True


def _read_header(source: Source, delimiter: str) -> list[str]:
    lines = [source.read(1)]
    if not lines[0]:
        return []
    try:
        row = _read_row(source.follow(lines, 0), delimiter)
    except BadRecord as error:
        raise InputError(f"{source.name}: the header row cannot be read: {error}") from None
    return [name.decode(errors="replace") for name in row]


def _read_row(lines: Iterator[bytes], delimiter: str) -> list[bytes]:
    first = next(lines)
    if b'"' not in first:
        text = first.removesuffix(b"\n").removesuffix(b"\r")
        return text.split(delimiter.encode()) if text else []
    rows = csv.reader(_decode(first, lines), strict=True, delimiter=delimiter)
    try:
        return [text.encode("latin-1") for text in next(rows)]
    except csv.Error as error:
        raise BadRecord(str(error)) from None


def _decode(first: bytes, others: Iterator[bytes]) -> Iterator[str]:
    yield first.decode("latin-1")
    for line in others:
        yield line.decode("latin-1")
