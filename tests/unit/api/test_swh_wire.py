"""The encodings of swh-counters' RPC protocol, from the bytes on the wire to the keys in Redis and back."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counters.api.swh_wire import (
    JSON,
    MSGPACK,
    RpcError,
    answer_kind,
    decode_arguments,
    encode,
    error_kind,
    keys_of,
    prefers_page,
)


def ext(code: int, magnitude: int) -> bytes:
    data = magnitude.to_bytes(9, "big")
    return msgspec.msgpack.encode({"keys": [msgspec.msgpack.Ext(code, data)]})


@pytest.mark.parametrize("kind", ["", "text/plain", JSON, MSGPACK])
def test_an_empty_body_of_any_type_has_no_arguments(kind: str) -> None:
    assert decode_arguments(b"", kind) == {}


@pytest.mark.parametrize("kind", [MSGPACK, "Application/X-MsgPack; charset=binary"])
def test_the_type_of_a_body_may_have_parameters(kind: str) -> None:
    assert decode_arguments(msgspec.msgpack.encode({"a": b"\xff"}), kind) == {"a": b"\xff"}


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"{", JSON, 400),
        (b"{} {}", JSON, 400),
        (b"[]", JSON, 400),
        (b"\xff", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"\x91" * 100_000, MSGPACK, 400),
        (b"\x81", MSGPACK, 400),
        (b"\x81\xa1\xff\x01", MSGPACK, 400),
        (b"\x81\xc4\x01a\x01", MSGPACK, 400),
        (b"\xc1", MSGPACK, 400),
    ],
)
def test_a_body_that_is_no_call_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(RpcError) as caught:
        decode_arguments(body, kind)
    assert caught.value.status == status


@given(st.binary(max_size=60), st.sampled_from([JSON, MSGPACK]))
def test_no_body_breaks_the_decoder(body: bytes, kind: str) -> None:
    with suppress(RpcError):
        keys_of(decode_arguments(body, kind).get("keys", []))


@pytest.mark.parametrize(
    ("given_key", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("é", "é".encode()),
        ("", b""),
        (1, b"1"),
        (-5, b"-5"),
        (1.5, b"1.5"),
        (1e300, b"1e+300"),
        ({"swhtype": "bytes", "d": "V{dMBWo~o"}, b"content"),
    ],
)
def test_a_key_is_what_redis_makes_of_it(given_key: object, stored: bytes) -> None:
    assert keys_of([given_key]) == [stored]


@pytest.mark.parametrize(("code", "sign"), [(1, 1), (2, -1)])
def test_numbers_beyond_64_bits_are_keys_too(code: int, sign: int) -> None:
    keys = decode_arguments(ext(code, 2**70), MSGPACK)["keys"]
    assert keys_of(keys) == [str(sign * 2**70).encode()]


@pytest.mark.parametrize(
    "key",
    [
        None,
        True,
        [b"a"],
        {"a": 1},
        {"swhtype": "bytes", "d": "é"},
        {"swhtype": "bytes", "d": 5},
        pytest.param(10**5000, id="5000 digits"),
    ],
)
def test_a_key_that_redis_cannot_store_is_refused(key: object) -> None:
    with pytest.raises(RpcError) as caught:
        keys_of([b"good", key])
    assert caught.value.status == 400


@pytest.mark.parametrize("keys", ["text", b"bytes", 5, None])
def test_keys_are_a_list_or_a_map(keys: object) -> None:
    with pytest.raises(RpcError):
        keys_of(keys)


def test_of_a_map_only_the_keys_count() -> None:
    assert keys_of({b"a": b"value", "b": None, 3: {"x": [1]}}) == [b"a", b"b", b"3"]


def test_a_record_without_key_costs_the_batch_nothing() -> None:
    assert keys_of({b"a": b"", None: b"value"}) == [b"a"]


def test_json_answers_look_as_they_always_did() -> None:
    assert encode({"a": 1, "b": [b"content"]}, JSON) == (
        b'{"a": 1, "b": [{"swhtype": "bytes", "d": "V{dMBWo~o"}]}'
    )


def test_bytes_are_bytes_in_messagepack() -> None:
    assert msgspec.msgpack.decode(encode([b"content", "text"], MSGPACK)) == [b"content", "text"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("text/html", JSON),
        (MSGPACK, MSGPACK),
        (JSON, JSON),
        (f"{MSGPACK}, */*;q=0.1", MSGPACK),
        (f"{MSGPACK};q=0.5, {JSON}", JSON),
        (f"{MSGPACK}, {JSON}", JSON),
        (f"{MSGPACK};q=nonsense", JSON),
        (f"{MSGPACK};q=0", JSON),
        ("application/*", JSON),
    ],
)
def test_the_answer_is_json_unless_messagepack_is_preferred(accept: str, kind: str) -> None:
    assert answer_kind(accept) == kind


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("", MSGPACK), ("*/*", MSGPACK), (MSGPACK, MSGPACK), (JSON, JSON), (f"{JSON}, */*", JSON)],
)
def test_an_error_is_messagepack_unless_json_is_asked_for_by_name(accept: str, kind: str) -> None:
    assert error_kind(accept) == kind


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", True),
        ("text/html, application/xhtml+xml, */*", True),
        ("text/html", True),
        ("", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("text/html;q=0, */*", False),
        ("text/html;q=0.5, */*", False),
    ],
)
def test_browsers_get_the_page_and_tools_the_old_greeting(accept: str, page: bool) -> None:
    assert prefers_page(accept) is page
