"""Values found inside messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from counters.errors import SettingsError
from counters.objects.derived import Derived, build_decoder

PERSONS = {
    "person": {
        "revision": ["author.fullname", "committer.fullname"],
        "release": ["author.fullname"],
    }
}
ADA = {"fullname": b"Ada Example <ada@example.org>", "name": b"Ada Example", "email": b"ada@example.org"}
BEN = {"fullname": b"Ben Example <ben@example.org>", "name": b"Ben Example", "email": b"ben@example.org"}

persons = build_decoder(PERSONS["person"]["revision"])


def packed(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def test_the_values_at_the_paths_are_found() -> None:
    assert persons(packed({"author": ADA, "committer": BEN})) == (ADA["fullname"], BEN["fullname"])


def test_a_value_found_twice_is_given_twice_and_left_to_the_counter() -> None:
    assert persons(packed({"author": ADA, "committer": ADA})) == (ADA["fullname"], ADA["fullname"])


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"author": None, "committer": None},
        {"author": {}, "committer": {"name": b"Ben"}},
        {"author": {"fullname": None}},
    ],
)
def test_absent_and_null_parts_are_skipped(message: object) -> None:
    assert persons(packed(message)) == ()


def test_a_null_author_does_not_hide_the_committer() -> None:
    assert persons(packed({"author": None, "committer": BEN})) == (BEN["fullname"],)


@pytest.mark.parametrize(
    ("value", "counted"),
    [(b"\xff\x00", b"\xff\x00"), (b"", b""), ("Zoë", "Zoë".encode()), (17, b"17"), (-1, b"-1"), (0, b"0")],
)
def test_bytes_strings_and_integers_are_values(value: object, counted: bytes) -> None:
    assert persons(packed({"author": {"fullname": value}})) == (counted,)


@pytest.mark.parametrize("value", [[], [b"x"], {}, {"a": 1}, True, False, 1.5, Ext(1, b"\x01")])
def test_any_other_value_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"author\.fullname holds a"):
        persons(packed({"author": {"fullname": value}}))


@pytest.mark.parametrize("author", ["Ada", b"Ada", 1, [ADA], True])
def test_a_path_through_something_that_is_not_a_map_is_an_error(author: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.author"):
        persons(packed({"author": author}))


@pytest.mark.parametrize("message", [None, b"x", "x", 1, [ADA], True, Ext(1, b"x")])
def test_a_message_that_is_not_a_map_is_an_error(message: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        persons(packed(message))


@pytest.mark.parametrize(
    "damage", [b"", b"\xc1", b"\x81", packed({"author": ADA})[:-1], packed({}) + b"\x00"]
)
def test_a_message_that_is_not_msgpack_is_an_error(damage: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        persons(damage)


@given(st.binary(max_size=200))
def test_random_bytes_yield_values_or_an_error_a_reader_can_set_aside(message: bytes) -> None:
    try:
        values = persons(message)
    except (msgspec.DecodeError, ValueError):
        return
    assert all(type(value) is bytes for value in values)


def test_deeply_nested_bytes_do_not_overflow_the_stack() -> None:
    with pytest.raises(RecursionError):
        persons(b"\x82\xa1x" + b"\x91" * 1_000_000 + b"\xc0\xa6author\xc0")


@pytest.mark.parametrize(
    "ignored",
    [
        Ext(1, b"\x01" * 9),
        Ext(2, b""),
        Ext(-1, b"not a timestamp"),
        datetime(2024, 2, 29, tzinfo=UTC),
        {"seconds": Ext(1, bytes(16)), "more": [Ext(42, bytes(300)), {b"raw key": Ext(-1, bytes(12))}]},
        {1: 2, b"refs/heads/main": {"target": bytes(20)}},
        {"fullname": ["not", "this", "one"]},
        [[[None, 1.5, -(2**63), 2**64 - 1]]],
    ],
)
def test_whatever_is_in_other_fields_is_ignored(ignored: object) -> None:
    message = {"date": ignored, "author": {"extra": ignored, **ADA}, "metadata": ignored}
    assert persons(packed(message)) == (ADA["fullname"],)


def test_field_names_need_not_be_identifiers() -> None:
    decode = build_decoder(["class", "f0.content-type", "__init__.é"])
    message = {"class": b"a", "f0": {"content-type": b"b"}, "__init__": {"é": b"c"}}
    assert decode(packed(message)) == (b"a", b"b", b"c")


def test_paths_may_be_deep_and_share_parents() -> None:
    decode = build_decoder(["a.b.c", "a.b.d", "a.e"])
    assert decode(packed({"a": {"b": {"c": b"1", "d": b"2"}, "e": b"3"}})) == (b"1", b"2", b"3")


def test_an_object_type_feeds_the_counters_that_name_it() -> None:
    derived = Derived.from_config({**PERSONS, "committer": {"revision": ["committer.fullname"]}})
    assert derived.feeds("revision") == ("person", "committer")
    assert derived.feeds("release") == ("person",)
    assert derived.sources == {"person": ("revision", "release"), "committer": ("revision",)}


def test_an_object_type_that_feeds_nothing_is_not_decoded() -> None:
    derived = Derived.from_config(PERSONS)
    assert derived.feeds("content") == ()
    assert derived.decoder("content") is None


def test_counters_reading_one_message_each_get_their_own_values() -> None:
    config = {**PERSONS, "committer": {"revision": ["committer.fullname"]}, "kind": {"revision": ["type"]}}
    decode = Derived.from_config(config).decoder("revision")
    assert decode is not None
    assert decode(packed({"author": ADA, "committer": BEN, "type": "git"})) == (
        (ADA["fullname"], BEN["fullname"]),
        (BEN["fullname"],),
        (b"git",),
    )


def test_the_same_counter_reads_other_fields_of_another_type() -> None:
    decode = Derived.from_config(PERSONS).decoder("release")
    assert decode is not None
    assert decode(packed({"author": ADA, "committer": BEN})) == ((ADA["fullname"],),)


@pytest.mark.parametrize("path", ["", ".", "a..b", ".a", "a.", " a", "a. b"])
def test_a_bad_path_is_refused_with_its_name_and_setting(path: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Derived.from_config({"person": {"revision": ["author.fullname", path]}})
    assert repr(path) in str(refusal.value)
    assert "objects.derived.person.revision" in str(refusal.value)


def test_a_path_that_runs_through_a_value_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"objects\.derived.*revision: 'author' is a value"):
        Derived.from_config({"person": {"revision": ["author.fullname"]}, "who": {"revision": ["author"]}})


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"person": {}}, "person names no object type"),
        ({"person": {"release": []}}, "person.release names no"),
    ],
)
def test_a_counter_that_would_count_nothing_is_refused(config: Any, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Derived.from_config(config)
