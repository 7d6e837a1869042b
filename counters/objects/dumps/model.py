"""What a dump of keys is to whoever counts it, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

Cursor: TypeAlias = Mapping[str, int]
"""Where reading goes on; opaque, and fit for JSON. Empty: at the beginning."""

Fingerprint: TypeAlias = Mapping[str, int | str]
"""By what a dump is known again, fit for JSON."""

MAX_PROBLEMS: Final = 5
"""Problems of one chunk that are described; the others are counted."""

_SHOWN: Final = 40
"""Characters of a bad record that are shown."""


class Form(StrEnum):
    """How a dump is written."""

    HEX = "hex"
    """One hexadecimal key per line."""

    JSONL = "jsonl"
    """One JSON object or string per line."""

    CSV = "csv"
    """Rows of comma-separated fields; of tabs in a file named ``.tsv``."""

    PARQUET = "parquet"
    """A Parquet file with a column of byte strings or text."""


class Encoding(StrEnum):
    """How a text stands for a key."""

    HEX = "hex"
    """Hexadecimal, with or without the ``\\x`` that PostgreSQL puts before it."""

    BASE64 = "base64"
    """Base64 with its padding."""

    UTF8 = "utf8"
    """The text itself is the key."""


class BadRecord(ValueError):
    """A record holds no key; the message says why in a few words."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive keys of a dump.

    Attributes:
        keys: in the order of the dump, none of them empty.
        cursor: where the next chunk starts; None at the end of the dump.
        failed: records that held no key.
        problems: the first of those, such as ``line 12: not hexadecimal: 'xyz'``.
    """

    keys: list[bytes]
    cursor: dict[str, int] | None
    failed: int = 0
    problems: list[str] = field(default_factory=list)


class Dump(Protocol):
    """A dump being read. The caller holds the cursor, so that it can be stored with what was counted."""

    @property
    def total(self) -> int | None:
        """Size in the unit of ``done``; None if only reading to the end can tell."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What to store beside a cursor and to hand to ``continues`` later."""

    def continues(self, earlier: Fingerprint) -> bool:
        """Whether cursors of the dump that had this fingerprint are good for this one: it is the same, or
        the same with more lines at its end."""

    def done(self, cursor: Cursor) -> int:
        """How much of the dump is before ``cursor``."""

    def read(self, cursor: Cursor, limit: int) -> Chunk:
        """About ``limit`` keys from ``cursor`` on. Cheap where the previous chunk ended, else it seeks.

        Raises:
            InputError: the dump cannot be read on.
        """

    def close(self) -> None:
        """Let go of the file."""


@dataclass(slots=True)
class Failures:
    """The bad records of one chunk."""

    count: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, where: str, error: BadRecord, record: bytes | str | None) -> None:
        """Note one: ``where`` is like ``line 12``."""
        self.count += 1
        if len(self.problems) < MAX_PROBLEMS:
            shown = "" if record is None else f": {_shorten(record)}"
            self.problems.append(f"{where}: {error}{shown}")


def _shorten(record: bytes | str) -> str:
    start = record[: 4 * _SHOWN]
    text = start.decode(errors="backslashreplace") if isinstance(start, bytes) else start
    text = text.rstrip("\r\n")
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
