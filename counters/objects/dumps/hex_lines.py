"""One hexadecimal key per line."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator

import numpy as np

from counters.objects.dumps.lines import Records
from counters.objects.dumps.model import BadRecord, Encoding
from counters.objects.dumps.values import POSTGRES_HEX, Keys, cut

_PREFIX = POSTGRES_HEX.encode()


class HexLines(Records):
    """Blank lines are no records; spaces around a key do not matter."""

    def __init__(self) -> None:
        self._keys = Keys(Encoding.HEX)

    def decode_block(self, block: bytes) -> list[bytes]:
        """Fastest if all lines are equally long."""
        if not block.endswith(b"\n"):
            block += b"\n"
        if block.startswith(_PREFIX):
            block = block.replace(b"\n" + _PREFIX, b"\n").removeprefix(_PREFIX)
        width = block.index(b"\n") + 1
        end = b"\r\n" if block[:width].endswith(b"\r\n") else b"\n"
        digits = width - len(end)
        if digits and len(block) % width == 0:
            table = np.frombuffer(block, np.uint8).reshape(-1, width)
            if (table[:, digits:] == np.frombuffer(end, np.uint8)).all():
                if digits % 2:  # two such lines would complete each other
                    raise BadRecord("odd")
                return cut(unhexlify(table[:, :digits].tobytes()), digits // 2)
        lines = block.replace(b"\r\n", b"\n").split(b"\n")
        return list(filter(None, map(unhexlify, lines)))

    def decode(self, lines: Iterator[bytes]) -> bytes | None:
        """One line."""
        line = next(lines).strip()
        return self._keys.decode(line) if line else None
