"""Keys and values as bytes."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from journal_client.serialization import decode_value, encode_value, murmur2, partition_of, show_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # The vectors of the test of Kafka's own Utils.murmur2, which are signed.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafkas_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_a_partition_never_depends_on_the_hashs_sign() -> None:
    assert {partition_of(b"%d" % n, 3) for n in range(100)} == {0, 1, 2}


def test_bytes_and_dates_survive_the_round_trip() -> None:
    value = {"id": b"\x00\xff", "date": datetime(2024, 5, 1, tzinfo=UTC), "author": None, "n": 2**63}
    assert decode_value(encode_value(value)) == value


def test_an_unknown_extension_type_is_kept() -> None:
    extension = msgspec.msgpack.Ext(1, b"big")
    assert decode_value(encode_value({"n": extension})) == {"n": extension}


def test_bytes_that_are_no_value_are_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_value(b"\xc1")


@pytest.mark.parametrize(
    ("key", "shown"),
    [(None, "null"), (b"", "empty"), (b"\x00\xab", "00ab"), (b"a" * 41, "61" * 40 + "… (41 bytes)")],
)
def test_a_key_is_shown_in_hexadecimal(key: bytes | None, shown: str) -> None:
    assert show_key(key) == shown
