"""How requests and answers of swh-counters' RPC protocol are encoded; pure.

A call is a POST whose body is one map of arguments, in MessagePack or JSON. Errors travel as a map as well,
with the fields a Python exception has.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

JSON, MSGPACK = "application/json", "application/x-msgpack"

_LONG_INT, _LONG_NEGATIVE_INT = 1, 2
"""MessagePack extension types of whole numbers beyond 64 bits: the magnitude, big-endian."""

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

_decode_msgpack = msgspec.msgpack.Decoder().decode
_decode_json = msgspec.json.Decoder().decode
_encode_msgpack = msgspec.msgpack.Encoder().encode


class RpcError(Exception):
    """A call that is answered with an error.

    Args:
        status: the HTTP status. Clients try again after a 503, and after nothing else.
        kind: name of the built-in Python exception that the client is told.
        message: what is wrong, and what to change.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """The map that stands for the exception. Tracebacks stay here: they show file paths."""
        message = str(self)
        return {
            "type": self.kind,
            "module": "builtins",
            "args": [message],
            "message": message,
            "traceback": [],
        }


def try_again(message: str) -> RpcError:
    """The error after which clients repeat their call, some seconds later."""
    return RpcError(503, "ConnectionError", f"{message}; try again", {"retry-after": "1"})


def decode_arguments(body: bytes, content_type: str) -> dict[str, Any]:
    """The arguments of a call; an empty body of any type has none.

    Raises:
        RpcError: the body is of another type, malformed, or not a map from names.
    """
    if not body:
        return {}
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, MSGPACK):
        raise RpcError(415, "ValueError", f"content type {kind[:80]!r} is neither {MSGPACK} nor {JSON}")
    try:
        arguments = _decode_msgpack(body) if kind == MSGPACK else _decode_json(body)
    except _MALFORMED as error:
        raise RpcError(400, "ValueError", f"the body is not valid {kind}: {error}") from None
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise RpcError(400, "TypeError", "the body is not a map from argument names to values")
    return arguments


def encode(value: object, kind: str) -> bytes:
    """``value`` as ``kind``; bytes in JSON become ``{"swhtype": "bytes", "d": <base 85>}``.

    JSON has a space after commas and colons, as existing clients that compare text know it.
    """
    if kind == MSGPACK:
        return _encode_msgpack(value)
    return json.dumps(value, default=_tag_bytes, allow_nan=False).encode()


def _tag_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"swhtype": "bytes", "d": base64.b85encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def keys_of(keys: object) -> list[bytes]:
    """The keys to add as Redis sees them: ``"a"`` is ``b"a"``, and ``1`` is ``"1"``.

    Args:
        keys: a list; or a map, as readers of the journal pass on what they fetched. Of a map the keys count;
            a record without key is one nobody can count and costs the rest nothing.

    Raises:
        RpcError: it is neither, or an element is not of a kind that Redis stores.
    """
    if isinstance(keys, dict):
        return [_stored(key) for key in keys if key is not None]
    if isinstance(keys, list):
        return [_stored(key) for key in keys]
    raise RpcError(400, "TypeError", f"keys is {_type(keys)}, but should be a list or a map")


def _stored(key: object) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, msgspec.msgpack.Ext) and key.code in (_LONG_INT, _LONG_NEGATIVE_INT):
        magnitude = int.from_bytes(key.data, "big")
        key = magnitude if key.code == _LONG_INT else -magnitude
    if isinstance(key, int | float) and not isinstance(key, bool):
        try:
            return repr(key).encode()
        except ValueError:  # Python does not write out numbers of thousands of digits
            raise RpcError(400, "ValueError", "a key is a number of too many digits") from None
    if isinstance(key, dict) and key.keys() == {"swhtype", "d"} and key["swhtype"] == "bytes":
        return _untag_bytes(key["d"])
    raise RpcError(400, "TypeError", f"a key is {_type(key)}, but should be bytes, text or a number")


def _untag_bytes(text: object) -> bytes:
    try:
        return base64.b85decode(text)  # type: ignore[arg-type]  # whatever it is, the answer is the same
    except (TypeError, ValueError, binascii.Error):
        raise RpcError(400, "ValueError", "a key is tagged as bytes, but is not in base 85") from None


def _type(value: object) -> str:
    return "null" if value is None else type(value).__name__


# What the Accept header asks for


def answer_kind(accept: str) -> str:
    """MessagePack if the header prefers it, else JSON."""
    if accept == MSGPACK:
        return MSGPACK
    return MSGPACK if quality(accept, MSGPACK) > quality(accept, JSON) else JSON


def error_kind(accept: str) -> str:
    """JSON only if the header asks for it by name, else MessagePack."""
    named = dict(_preferences(accept))
    return JSON if named.get(JSON, 0.0) > named.get(MSGPACK, 0.0) else MSGPACK


def prefers_page(accept: str) -> bool:
    """Whether a browser asks, which names HTML; tools say ``*/*`` or nothing."""
    named = dict(_preferences(accept))
    html = max(named.get("text/html", 0.0), named.get("application/xhtml+xml", 0.0))
    return html > 0 and html >= named.get("*/*", 0.0)


def quality(accept: str, kind: str) -> float:
    """How much ``kind`` is wanted, 0 to 1, by the most specific range that covers it."""
    named = dict(_preferences(accept))
    for covering in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if covering in named:
            return named[covering]
    return 0.0


def _preferences(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        q = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            yield kind, min(1.0, max(0.0, float(q)))
        except ValueError:
            yield kind, 0.0
