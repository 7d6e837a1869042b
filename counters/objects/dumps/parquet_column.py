"""One column of a Parquet file."""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from counters.errors import InputError
from counters.objects.dumps.csv_rows import find_column
from counters.objects.dumps.model import BadRecord, Chunk, Cursor, Encoding, Failures, Fingerprint
from counters.objects.dumps.source import open_file, take_fingerprint
from counters.objects.dumps.values import Keys, cut

_MAX_BATCH: Final = 1 << 17
"""Rows read at once, whatever the limit of a chunk."""

_BUFFER: Final = 1 << 20
"""Bytes of the column read at once; without it, all that a row group has of it is held in memory."""


class ParquetDump:
    """Byte strings are keys as they are; texts are decoded. Nulls are failures.

    Args:
        path: the file.
        field: name of the column; None: the only one.
        encoding: how texts stand for keys.
        fingerprint: by what the dump is known, beside the file.

    Raises:
        InputError: pyarrow is not installed, the file cannot be read, or has no such column.
    """

    def __init__(self, path: Path, field: str | None, encoding: Encoding, fingerprint: Fingerprint) -> None:
        self._arrow, parquet = _import_arrow()
        self._path = path
        with open_file(path) as file:
            self._fingerprint = {**fingerprint, **take_fingerprint(file)}
        try:
            self._file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputError(f"{path}: is no Parquet file: {_first_line(error)}") from error
        schema = self._file.schema_arrow
        self._column: str = schema.names[find_column(str(path), schema.names, field)]
        self._keys = None if self._holds_bytes(schema.field(self._column).type) else Keys(encoding)
        groups = range(self._file.num_row_groups)
        rows = (self._file.metadata.row_group(group).num_rows for group in groups)
        self._starts: list[int] = list(accumulate(rows, initial=0))
        self._batches: Iterator[Any] = iter(())
        self._batch_size = 0
        self._row = 0

    @property
    def total(self) -> int:
        """Rows."""
        return self._starts[-1]

    @property
    def fingerprint(self) -> Fingerprint:
        """Form, size and beginning."""
        return self._fingerprint

    def continues(self, earlier: Fingerprint) -> bool:
        """Whether it is the same file: one of this kind does not grow."""
        return dict(earlier) == self._fingerprint

    def done(self, cursor: Cursor) -> int:
        """Rows before ``cursor``."""
        return cursor.get("row", 0)

    def read(self, cursor: Cursor, limit: int) -> Chunk:
        """About ``limit`` keys from ``cursor`` on.

        Raises:
            InputError: the file is damaged here.
        """
        row, size = cursor.get("row", 0), max(1, min(limit, _MAX_BATCH))
        if (row, size) != (self._row, self._batch_size):
            self._batches, self._batch_size = self._iter_batches(row, size), size
        failures = Failures()
        try:
            values = next(self._batches, None)
            keys = [] if values is None else self._decode(values, row, failures)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputError(f"{self._path}: damaged after row {row}: {_first_line(error)}") from error
        self._row = self.total if values is None else row + len(values)
        end = {"row": self._row} if self._row < self.total else None
        return Chunk(keys, end, failures.count, failures.problems)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _iter_batches(self, row: int, size: int) -> Iterator[Any]:
        """The column from ``row`` on; of its row group, what is before is read again."""
        group = bisect_right(self._starts, row) - 1
        groups = range(group, self._file.num_row_groups)
        to_skip = row - self._starts[group]
        for batch in self._file.iter_batches(size, groups, [self._column], use_threads=False):
            if to_skip < len(batch):
                yield batch.column(0).slice(to_skip)
            to_skip = max(0, to_skip - len(batch))

    def _decode(self, values: Any, row: int, failures: Failures) -> list[bytes]:
        """The keys in ``values``, an Arrow array, whose first is that of ``row``."""
        plain = _plain(values).cast(self._arrow.large_binary())
        try:
            if plain.null_count:
                raise BadRecord("null")
            return self._check(_to_list(plain))
        except ValueError:
            return self._decode_one_by_one(plain, row, failures)

    def _check(self, values: list[bytes]) -> list[bytes]:
        if self._keys is not None:
            return self._keys.decode_all(values)
        if not all(values):
            raise BadRecord("empty")
        return values

    def _decode_one_by_one(self, values: Any, row: int, failures: Failures) -> list[bytes]:
        keys = []
        for number, value in enumerate(values.to_pylist(), row + 1):
            if value is None:
                failures.add(f"row {number}", BadRecord("null"), None)
                continue
            try:
                keys += self._check([value]) if self._keys is None else [self._keys.decode(value)]
            except BadRecord as error:
                failures.add(f"row {number}", error, value)
        return keys

    def _holds_bytes(self, kind: Any) -> bool:
        """Whether the column holds byte strings; if not, it holds text."""
        types = self._arrow.types
        plain = _plain_type(kind)
        if types.is_binary(plain) or types.is_large_binary(plain) or types.is_fixed_size_binary(plain):
            return True
        if types.is_string(plain) or types.is_large_string(plain):
            return False
        raise InputError(f"{self._path}: column {self._column!r} holds {kind}, neither byte strings nor text")


def _import_arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("reading Parquet needs pyarrow; pip install 'counters[parquet]'") from error


def _plain_type(kind: Any) -> Any:
    """The type behind a dictionary of repeated values, or behind a named type such as UUID."""
    kind = getattr(kind, "storage_type", kind)
    return getattr(kind, "value_type", kind) if hasattr(kind, "index_type") else kind


def _plain(values: Any) -> Any:
    values = getattr(values, "storage", values)
    return values.dictionary_decode() if hasattr(values, "dictionary_decode") else values


def _to_list(values: Any) -> list[bytes]:
    """The byte strings of a large_binary array without nulls; ``to_pylist`` takes several times as long."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(values) + 1, 8 * values.offset)
    start, end = int(offsets[0]), int(offsets[-1])
    data: bytes = data_buffer.slice(start, end - start).to_pybytes() if end > start else b""
    width, rest = divmod(len(data), len(values))
    if width and not rest and (np.diff(offsets) == width).all():
        return cut(data, width)
    ends = (offsets - start).tolist()
    return [data[a:b] for a, b in pairwise(ends)]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
