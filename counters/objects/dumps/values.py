"""From the texts in a dump to keys."""

from __future__ import annotations

from binascii import a2b_base64, unhexlify
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from counters.objects.dumps.model import BadRecord, Encoding

Text: TypeAlias = str | bytes
"""A text, decoded or not, as the format at hand yields it."""

POSTGRES_HEX: Final = "\\x"
"""What PostgreSQL writes before the hexadecimal digits of a ``bytea``."""


def cut(data: bytes, width: int) -> list[bytes]:
    """``data`` in pieces of ``width`` bytes; three times as fast as slices are."""
    pieces: list[bytes] = np.frombuffer(data, f"V{width}").tolist()
    return pieces


class Keys:
    """Makes keys of texts, many at once where all are good, else one by one.

    Args:
        encoding: how the texts stand for keys.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._decode_all = _ALL[encoding]
        self._decode_one = _ONE[encoding]

    def decode_all(self, texts: Sequence[Text]) -> list[bytes]:
        """The keys of texts of one type.

        Raises:
            ValueError, TypeError: at least one of them is bad; ``decode`` says which and why.
        """
        keys = self._decode_all(texts) if texts else []
        if not all(keys):
            raise BadRecord("empty")
        return keys

    def decode(self, text: Text) -> bytes:
        """The key of one text.

        Raises:
            BadRecord: it is none, or it is empty.
        """
        try:
            key = self._decode_one(text)
        except ValueError:
            raise BadRecord(f"not {_NAMES[self._encoding]}") from None
        if not key:
            raise BadRecord("empty")
        return key


def _unhex_all(texts: Sequence[Any]) -> list[bytes]:
    prefix: Any = POSTGRES_HEX if isinstance(texts[0], str) else POSTGRES_HEX.encode()
    if texts[0].startswith(prefix):
        texts = [text.removeprefix(prefix) for text in texts]
    return list(map(unhexlify, texts))


def _unhex(text: Text) -> bytes:
    digits = text if isinstance(text, str) else text.decode("latin-1")
    return unhexlify(digits.removeprefix(POSTGRES_HEX))


_unbase64: Callable[[Text], bytes] = partial(a2b_base64, strict_mode=True)


def _unbase64_all(texts: Sequence[Any]) -> list[bytes]:
    return list(map(_unbase64, texts))


def _as_is_all(texts: Sequence[Any]) -> list[bytes]:
    if isinstance(texts[0], bytes):
        b"\n".join(texts).decode()  # with a separator, two broken texts cannot mend each other
        return list(texts)
    return list(map(str.encode, texts))


def _as_is(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text.decode().encode()


_ALL: Final = {Encoding.HEX: _unhex_all, Encoding.BASE64: _unbase64_all, Encoding.UTF8: _as_is_all}
_ONE: Final = {Encoding.HEX: _unhex, Encoding.BASE64: _unbase64, Encoding.UTF8: _as_is}
_NAMES: Final = {Encoding.HEX: "hexadecimal", Encoding.BASE64: "base64", Encoding.UTF8: "UTF-8"}
