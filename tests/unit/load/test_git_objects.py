"""Git's object formats as values of a journal."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counters.load.objects import (
    PARSERS,
    Branch,
    Content,
    Date,
    Directory,
    MalformedObject,
    Person,
    Revision,
    Timestamp,
    build_snapshot,
    encode,
    origin_key,
    parse_directory,
    parse_person,
    parse_release,
    parse_revision,
    public_url,
)

ID = bytes(range(20))
TREE = "a0" * 20
PARENT = "b1" * 20
SIGNATURE = b"Ada Example <ada@example.org> 1700000000 +0100"
ADA = Person(b"Ada Example <ada@example.org>", b"Ada Example", b"ada@example.org")


def commit(*headers: bytes, message: bytes | None = b"A message\n") -> bytes:
    lines = [b"tree " + TREE.encode(), *headers]
    return b"\n".join(lines) + b"\n" + (b"" if message is None else b"\n" + message)


def tag(*headers: bytes, message: bytes = b"A release\n") -> bytes:
    return b"object %s\ntype commit\n" % TREE.encode() + b"\n".join(headers) + b"\n\n" + message


def rebuild(revision: Revision) -> bytes:
    """A commit's bytes from its fields, for those whose headers are in git's order."""
    lines = [b"tree " + revision.directory.hex().encode()]
    lines += [b"parent " + parent.hex().encode() for parent in revision.parents]
    signatures = [
        (b"author", revision.author, revision.date),
        (b"committer", revision.committer, revision.committer_date),
    ]
    for key, person, date in signatures:
        assert person is not None
        assert date is not None
        lines.append(b"%s %s %d %s" % (key, person.fullname, date.timestamp.seconds, date.offset_bytes))
    lines += [key + b" " + value.replace(b"\n", b"\n ") for key, value in revision.extra_headers]
    return b"\n".join(lines) + b"\n" + (b"" if revision.message is None else b"\n" + revision.message)


def test_a_tree_becomes_entries_with_their_kinds() -> None:
    target = bytes(20)
    modes = [b"100644 text", b"100755 script", b"120000 link", b"40000 folder", b"160000 submodule"]
    directory = parse_directory(ID, b"".join(mode + b"\0" + target for mode in modes))
    assert [(entry.name, entry.type, entry.perms) for entry in directory.entries] == [
        (b"text", "file", 0o100644),
        (b"script", "file", 0o100755),
        (b"link", "file", 0o120000),
        (b"folder", "dir", 0o040000),
        (b"submodule", "rev", 0o160000),
    ]


def test_names_in_a_tree_may_hold_any_byte_but_nul() -> None:
    directory = parse_directory(ID, b"100644 a b\n\xff\0" + b"\0\n 100644 x\0y".ljust(20))
    assert [entry.name for entry in directory.entries] == [b"a b\n\xff"]


def test_a_mode_padded_with_zeros_is_the_same_mode() -> None:
    assert parse_directory(ID, b"00000040000 a\0" + ID).entries[0].type == "dir"


def test_the_empty_tree_has_no_entries() -> None:
    assert parse_directory(ID, b"").entries == []


def test_targets_are_as_long_as_the_identifiers_of_the_repository() -> None:
    target = bytes(range(32))
    assert parse_directory(bytes(32), b"100644 a\0" + target).entries[0].target == target


@pytest.mark.parametrize(
    "data", [b"100644 a\0short", b"100644 a", b"x a\0" + ID, b"100644 a\0" + ID + b"rest"]
)
def test_a_tree_that_does_not_add_up_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedObject):
        parse_directory(ID, data)


def test_a_commit_becomes_a_revision() -> None:
    data = commit(b"parent " + PARENT.encode(), b"author " + SIGNATURE, b"committer " + SIGNATURE)
    date = Date(Timestamp(1_700_000_000), b"+0100")
    assert parse_revision(ID, data) == Revision(
        id=ID,
        message=b"A message\n",
        author=ADA,
        committer=ADA,
        date=date,
        committer_date=date,
        directory=bytes.fromhex(TREE),
        parents=[bytes.fromhex(PARENT)],
        extra_headers=[],
    )


def test_a_revision_is_published_under_the_names_of_an_archive() -> None:
    value = msgspec.msgpack.decode(encode(parse_revision(ID, commit(b"author " + SIGNATURE))))
    assert value == {
        "id": ID,
        "message": b"A message\n",
        "author": {
            "fullname": b"Ada Example <ada@example.org>",
            "name": b"Ada Example",
            "email": b"ada@example.org",
        },
        "committer": None,
        "date": {"timestamp": {"seconds": 1_700_000_000, "microseconds": 0}, "offset_bytes": b"+0100"},
        "committer_date": None,
        "directory": bytes.fromhex(TREE),
        "parents": [],
        "extra_headers": [],
        "type": "git",
        "metadata": None,
        "synthetic": False,
    }


def test_a_content_is_published_without_its_data() -> None:
    assert msgspec.msgpack.decode(encode(Content(ID, 7))) == {
        "sha1_git": ID,
        "length": 7,
        "status": "visible",
    }


def test_headers_of_several_lines_stay_whole() -> None:
    signature = b"gpgsig -----BEGIN\n \n abc\n -----END"
    data = commit(b"author " + SIGNATURE, b"encoding ISO-8859-1", signature, b"unknown")
    assert parse_revision(ID, data).extra_headers == [
        (b"encoding", b"ISO-8859-1"),
        (b"gpgsig", b"-----BEGIN\n\nabc\n-----END"),
        (b"unknown", b""),
    ]


def test_a_merged_tag_does_not_disturb_the_commit_that_carries_it() -> None:
    merged = (
        b"mergetag object " + PARENT.encode() + b"\n type commit\n tag v1\n tagger X <x@y> 1 +0\n \n Message"
    )
    revision = parse_revision(ID, commit(b"author " + SIGNATURE, merged))
    assert [key for key, _ in revision.extra_headers] == [b"mergetag"]


@pytest.mark.parametrize(("message", "expected"), [(b"", b""), (None, None), (b"\n\nx", b"\n\nx")])
def test_the_message_is_what_follows_the_first_empty_line(
    message: bytes | None, expected: bytes | None
) -> None:
    assert parse_revision(ID, commit(b"author " + SIGNATURE, message=message)).message == expected


@pytest.mark.parametrize(
    ("line", "fullname", "date"),
    [
        (b"Ada 1700000000 +0100", b"Ada", (1_700_000_000, b"+0100")),
        (b"Ada <ada@example.org>", b"Ada <ada@example.org>", None),
        (b"Ada <ada@example.org> soon", b"Ada <ada@example.org>", None),
        (b"Ada <ada@example.org> 1700000000", b"Ada <ada@example.org>", None),
        (b"Ada <a> 1700000000 +051800", b"Ada <a>", (1_700_000_000, b"+051800")),
        (b"Ada <a> 1700000000 --700", b"Ada <a>", (1_700_000_000, b"--700")),
        (b"Ada <a> -1 -0000", b"Ada <a>", (-1, b"-0000")),
        (b"Ada <a> 99999999999999999999 +0000", b"Ada <a>", None),
        (b"Ada <a> <b> 5 +0000", b"Ada <a> <b>", (5, b"+0000")),
        (b"", b"", None),
    ],
)
def test_a_signature_keeps_the_person_whatever_the_date_is(
    line: bytes, fullname: bytes, date: tuple[int, bytes] | None
) -> None:
    revision = parse_revision(ID, commit(b"author " + line))
    assert revision.author is not None
    assert revision.author.fullname == fullname
    assert revision.date == (date and Date(Timestamp(date[0]), date[1]))


@pytest.mark.parametrize(
    ("fullname", "name", "email"),
    [
        (b"Ada Example <ada@example.org>", b"Ada Example", b"ada@example.org"),
        (b"Ada <a> <b>", b"Ada", b"a> <b"),
        (b"Ada <>", b"Ada", b""),
        (b"<ada@example.org>", None, b"ada@example.org"),
        (b"Ada", b"Ada", None),
        (b"Ada <ada", b"Ada", b"ada"),
        (b"\xe4da\xff <x>", b"\xe4da\xff", b"x"),
        (b"", None, None),
    ],
)
def test_a_person_is_split_where_git_splits_it(
    fullname: bytes, name: bytes | None, email: bytes | None
) -> None:
    assert parse_person(fullname) == Person(fullname, name, email)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\nonly a message",
        b"author " + SIGNATURE + b"\n\n",
        b"tree abc\n\n",
        b"tree " + b"zz" * 20 + b"\n\n",
        commit(b"parent 00"),
        b" tree " + TREE.encode() + b"\n\n",
    ],
)
def test_a_commit_without_a_usable_tree_or_parent_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedObject):
        parse_revision(ID, data)


def test_a_tag_becomes_a_release() -> None:
    release = parse_release(ID, tag(b"tag v1.0", b"tagger " + SIGNATURE))
    assert (release.name, release.message, release.target_type) == (b"v1.0", b"A release\n", "revision")
    assert release.target == bytes.fromhex(TREE)
    assert release.author == ADA
    assert release.date == Date(Timestamp(1_700_000_000), b"+0100")


def test_a_tag_without_tagger_has_no_author_and_no_date() -> None:
    value = msgspec.msgpack.decode(encode(parse_release(ID, tag(b"tag v0.1"))))
    assert (value["author"], value["date"]) == (None, None)


def test_a_tag_of_an_unknown_type_is_malformed() -> None:
    with pytest.raises(MalformedObject):
        parse_release(ID, b"object %s\ntype stick\ntag v1\n\n" % TREE.encode())


def test_the_snapshot_of_no_branches_has_the_identifier_known_for_it() -> None:
    assert build_snapshot({}, "sha1").id.hex() == "1a8893e6a86f444e8be8e7bda6cb34fb1735a00e"


def test_the_identifier_of_a_snapshot_covers_types_names_and_targets_in_the_order_of_names() -> None:
    branches = {
        b"refs/heads/main": Branch(ID, "revision"),
        b"HEAD": Branch(b"refs/heads/main", "alias"),
        b"refs/heads/gone": None,
    }
    manifest = (
        b"alias HEAD\x0015:refs/heads/maindangling refs/heads/gone\x000:revision refs/heads/main\x0020:" + ID
    )
    expected = hashlib.sha256(b"snapshot %d\0" % len(manifest) + manifest).digest()
    assert build_snapshot(branches, "sha256").id == expected


def test_a_snapshot_is_published_with_binary_names() -> None:
    snapshot = build_snapshot({b"refs/heads/\xff": Branch(ID, "revision"), b"refs/heads/gone": None}, "sha1")
    assert msgspec.msgpack.decode(encode(snapshot)) == {
        "id": snapshot.id,
        "branches": {
            b"refs/heads/\xff": {"target": ID, "target_type": "revision"},
            b"refs/heads/gone": None,
        },
    }


def test_the_key_of_an_origin_is_the_sha1_of_its_url() -> None:
    assert origin_key("https://example.org/x").hex() == hashlib.sha1(b"https://example.org/x").hexdigest()


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://example.org/a.git", "https://example.org/a.git"),
        ("https://ada:secret@example.org/a.git", "https://example.org/a.git"),
        ("https://token@example.org:8443/a.git", "https://example.org:8443/a.git"),
        ("https://ada:p@ss@example.org/a", "https://example.org/a"),
        ("HTTPS://ada:secret@example.org/a?private_token=secret#x", "HTTPS://example.org/a"),
        ("https://example.org/a@b/c", "https://example.org/a@b/c"),
        ("ssh://git:secret@example.org/a", "ssh://git@example.org/a"),
        ("git+ssh://git@[::1]:22/a", "git+ssh://git@[::1]:22/a"),
        ("git@example.org:a.git", "git@example.org:a.git"),
        ("../a?b", "../a?b"),
        ("https://example.org/\udcff", "https://example.org/\ufffd"),
    ],
)
def test_the_published_url_lets_nobody_in(url: str, public: str) -> None:
    assert public_url(url) == public


@given(kind=st.sampled_from(sorted(PARSERS)), length=st.sampled_from([20, 32]), data=st.binary(max_size=200))
def test_arbitrary_bytes_are_an_object_or_malformed(kind: bytes, length: int, data: bytes) -> None:
    try:
        value = PARSERS[kind](bytes(length), data)
    except MalformedObject:
        return
    assert encode(value)


@given(cut=st.integers(0, 400), at=st.integers(0, 400), noise=st.binary(max_size=8))
def test_a_damaged_commit_is_a_revision_or_malformed(cut: int, at: int, noise: bytes) -> None:
    data = commit(b"parent " + PARENT.encode(), b"author " + SIGNATURE, b"gpgsig a\n b")
    try:
        value = parse_revision(ID, data[:at] + noise + data[at + cut :])
    except MalformedObject:
        return
    assert encode(value)


_line = st.binary(max_size=30).filter(lambda text: b"\n" not in text)
_people = _line.filter(lambda text: b"<" not in text and b">" not in text).map(lambda text: text + b" <x@y>")


@given(
    parents=st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    person=_people,
    seconds=st.integers(-(10**17), 10**17),
    extra=st.lists(st.tuples(st.just(b"x-header"), st.binary(max_size=30)), max_size=3),
    message=st.none() | st.binary(max_size=50),
)
def test_a_well_formed_commit_can_be_built_again_from_its_revision(
    parents: list[bytes],
    person: bytes,
    seconds: int,
    extra: list[tuple[bytes, bytes]],
    message: bytes | None,
) -> None:
    date = Date(Timestamp(seconds), b"+0000")
    author = parse_person(person)
    revision = Revision(ID * 2, message, author, author, date, date, bytes(32), parents, extra)
    data = rebuild(revision)
    parsed = parse_revision(bytes(32), data)
    assert rebuild(parsed) == data
    assert (parsed.author, parsed.date, parsed.parents) == (author, date, parents)
    assert (parsed.extra_headers, parsed.message) == (extra, message)


_names = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from([b"40000", b"100644", b"160000"]), _names, st.binary(min_size=20, max_size=20)
        )
    )
)
def test_a_well_formed_tree_keeps_every_entry(lines: list[tuple[bytes, bytes, bytes]]) -> None:
    directory = parse_directory(ID, b"".join(b"%s %s\0%s" % line for line in lines))
    assert [(b"%o" % entry.perms, entry.name, entry.target) for entry in directory.entries] == lines
    assert msgspec.msgpack.decode(encode(directory), type=Directory) == directory
