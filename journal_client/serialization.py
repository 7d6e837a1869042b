"""Keys and values of the journal as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

_SHOWN_BYTES = 40


def encode_value(value: object) -> bytes:
    """A record's value in MessagePack: ``bytes`` stay bytes, aware datetimes become its timestamp type.

    Raises:
        TypeError: something in ``value`` has no form in MessagePack.
    """
    return msgspec.msgpack.encode(value)


def decode_value(value: bytes) -> Any:
    """The reverse of :func:`encode_value`; extension types it does not know stay ``msgspec.msgpack.Ext``.

    Raises:
        msgspec.DecodeError: the bytes are not one MessagePack value.
    """
    return msgspec.msgpack.decode(value)


def show_key(key: bytes | None) -> str:
    """A key as text for logs and errors: hexadecimal, cut when long, and never empty."""
    if key is None:
        return "null"
    if not key:
        return "empty"
    shown = key[:_SHOWN_BYTES].hex()
    return shown if len(key) <= _SHOWN_BYTES else f"{shown}… ({len(key)} bytes)"


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's Java client and librdkafka's ``murmur2`` put ``key``, of so many ``partitions``."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(key: bytes) -> int:
    """MurmurHash2 as Kafka's Java client computes it (``Utils.murmur2``), as an unsigned 32-bit number."""
    mask, mix = 0xFFFF_FFFF, 0x5BD1_E995
    whole = len(key) & ~3
    result = 0x9747_B28C ^ len(key)
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * mix & mask
        word = (word ^ word >> 24) * mix & mask
        result = (result * mix & mask) ^ word
    if whole < len(key):
        result = (result ^ int.from_bytes(key[whole:], "little")) * mix & mask
    result = (result ^ result >> 13) * mix & mask
    return result ^ result >> 15
