"""Dumps written and read in tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from counters.objects.dumps import Chunk, Encoding, Form, open_dump

KEYS = [bytes([n]) * 20 for n in range(1, 200)]


def read_chunks(
    path: Path,
    form: Form,
    *,
    limit: int = 1_000_000,
    field: str | None = None,
    encoding: Encoding = Encoding.HEX,
) -> Iterator[Chunk]:
    """All chunks, one after the other, by a reader that lives as long as that takes."""
    with closing(open_dump(path, form, field=field, encoding=encoding)) as dump:
        cursor: dict[str, int] | None = {}
        while cursor is not None:
            chunk = dump.read(cursor, limit)
            yield chunk
            cursor = chunk.cursor


def read_anew(
    path: Path, form: Form, *, limit: int, field: str | None = None, encoding: Encoding = Encoding.HEX
) -> list[bytes]:
    """All keys, every chunk read by a new reader from a stored cursor."""
    keys: list[bytes] = []
    stored = "{}"
    while stored != "null":
        with closing(open_dump(path, form, field=field, encoding=encoding)) as dump:
            chunk = dump.read(json.loads(stored), limit)
        keys += chunk.keys
        stored = json.dumps(chunk.cursor)
    return keys


def join(chunks: Iterator[Chunk]) -> tuple[list[bytes], int, list[str]]:
    """Keys, failures and problems of all chunks."""
    read = list(chunks)
    return (
        [key for chunk in read for key in chunk.keys],
        sum(chunk.failed for chunk in read),
        [problem for chunk in read for problem in chunk.problems],
    )
