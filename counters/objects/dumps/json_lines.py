"""One JSON object or string per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final

import msgspec

from counters.errors import InputError
from counters.objects.dumps.lines import Records
from counters.objects.dumps.model import BadRecord, Encoding
from counters.objects.dumps.values import Keys

DEFAULT_FIELD: Final = "id"


class JsonLines(Records):
    """Only the field with the key is decoded; blank lines are no records.

    Args:
        field: name of the field, or a path of names joined by dots. A line that is just a string is a key.
        encoding: how strings stand for keys. Where the text itself is the key, an integer is one in decimal.

    Raises:
        InputError: the path has an empty part.
    """

    def __init__(self, field: str, encoding: Encoding) -> None:
        path = field.split(".")
        if not all(path):
            raise InputError(f"--field {field!r} is not a path; join names by dots, like author.id")
        self._keys = Keys(encoding)
        value = str | int if encoding is Encoding.UTF8 else str
        record = _define_struct(path, value)
        self._objects = msgspec.json.Decoder(record)
        self._strings = msgspec.json.Decoder(str)
        self._either: msgspec.json.Decoder[Any] = msgspec.json.Decoder(record | str)
        self._get: Callable[[Any], str | int] = attrgetter(".".join(["f0"] * len(path)))

    def decode_block(self, block: bytes) -> list[bytes]:
        """All lines hold objects, or all hold strings."""
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if not block.endswith(b"\n"):
            block += b"\n"
        try:
            texts = self._texts_of_strings(block) if block[0] == ord('"') else self._texts_of_objects(block)
            return self._keys.decode_all(texts)
        except (msgspec.MsgspecError, RecursionError, TypeError, AttributeError) as error:
            raise BadRecord(str(error)) from None

    def decode(self, lines: Iterator[bytes]) -> bytes | None:
        """One line."""
        line = next(lines).strip(b" \t\r\n")
        if not line:
            return None
        try:
            record = self._either.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BadRecord(f"not as expected: {error}") from None
        text = record if isinstance(record, str) else self._get(record)
        return self._keys.decode(text if isinstance(text, str) else str(text))

    def _texts_of_objects(self, block: bytes) -> list[Any]:
        # The decoder minds no line ends. These are all between two objects, and there are as many of both, so
        # each line holds one.
        records = self._objects.decode_lines(block)
        if not len(records) == block.count(b"\n") == block.count(b"}\n{") + 1:
            raise BadRecord("not one object per line")
        return [self._get(record) for record in records]

    def _texts_of_strings(self, block: bytes) -> list[Any]:
        texts = self._strings.decode_lines(block)
        if not len(texts) == block.count(b"\n") == block.count(b'"\n"') + 1:
            raise BadRecord("not one string per line")
        return texts


def _define_struct(path: list[str], value: Any) -> Any:
    """A struct with just the wanted field, whatever its name, and structs around it for the way there."""
    for name in reversed(path):
        value = msgspec.defstruct("Wanted", [("f0", value)], rename={"f0": name}, frozen=True, gc=False)
    return value
