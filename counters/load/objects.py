"""Git objects as the values of an archive's journal (pure).

The fields and their names are those that archives of source code publish: ``content``, ``directory``,
``revision``, ``release``, ``snapshot`` and ``origin``. Every value is a msgpack map; identifiers, names and
messages are binary. What git itself tolerates is tolerated here: a signature without date, a tag without
tagger, an unknown header. What cannot be represented raises ``MalformedObject`` and costs that object only.

The object formats are described in git's own documentation (gitformat-index, git-mktag, git-commit-tree).
"""

from __future__ import annotations

import hashlib
import re
from binascii import unhexlify
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

encode = msgspec.msgpack.Encoder().encode
"""A value below as the bytes of a journal record."""

OBJECT_TYPES = ("content", "directory", "revision", "release", "snapshot", "origin")
"""Every object type that is published, in the order of the summary."""

TARGET_TYPES = {b"blob": "content", b"tree": "directory", b"commit": "revision", b"tag": "release"}
"""Git's object types as an archive calls them."""

# Git takes a mode padded with zeros; 21 octal digits are 63 bits.
_ENTRY = {length: rb"([0-7]{1,21}) ([^\0]+)\0(.{%d})" % length for length in (20, 32)}
_ENTRIES = {length: re.compile(entry, re.DOTALL) for length, entry in _ENTRY.items()}
# Possessive, because a tree can be read in one way only: no memory is spent on ways back.
_TREE = {length: re.compile(b"(?:%s)*+" % entry, re.DOTALL) for length, entry in _ENTRY.items()}
_FIELD_END = re.compile(rb"\n(?! )")
# 18 digits always fit the signed 64 bits of a timestamp.
_SIGNATURE = re.compile(rb"(.*) (-?[0-9]{1,18}) ([^ <>]*)", re.DOTALL)
_USER_INFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)@")


class MalformedObject(ValueError):
    """The bytes are not an object of the type that git says they are."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """A blob: its identifier and its length in bytes, never its data."""

    sha1_git: bytes
    length: int
    status: str = "visible"


class DirectoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of a tree. ``type`` is ``file`` (also symbolic links), ``dir`` or ``rev`` (a submodule)."""

    name: bytes
    type: str
    target: bytes
    perms: int


class Directory(msgspec.Struct, frozen=True):
    """A tree, entries in git's order."""

    id: bytes
    entries: list[DirectoryEntry]


class Person(msgspec.Struct, frozen=True, gc=False):
    """Who wrote or committed; ``fullname`` is what git stored, the parts are None where it has none."""

    fullname: bytes
    name: bytes | None
    email: bytes | None


class Timestamp(msgspec.Struct, frozen=True, gc=False):
    """Seconds since the epoch; git knows no fractions."""

    seconds: int
    microseconds: int = 0


class Date(msgspec.Struct, frozen=True, gc=False):
    """A point in time, and the offset from UTC as git stored it, right or wrong (``+0200``, ``+051800``)."""

    timestamp: Timestamp
    offset_bytes: bytes


class Revision(msgspec.Struct, frozen=True):
    """A commit. ``extra_headers`` are all other headers in order: encoding, signatures, unknown ones."""

    id: bytes
    message: bytes | None
    author: Person | None
    committer: Person | None
    date: Date | None
    committer_date: Date | None
    directory: bytes
    parents: list[bytes]
    extra_headers: list[tuple[bytes, bytes]]
    type: str = "git"
    metadata: None = None
    synthetic: bool = False


class Release(msgspec.Struct, frozen=True):
    """An annotated tag. Old tags have neither tagger nor date: ``author`` and ``date`` are None."""

    id: bytes
    name: bytes
    message: bytes | None
    target: bytes
    target_type: str
    author: Person | None
    date: Date | None
    metadata: None = None
    synthetic: bool = False


class Branch(msgspec.Struct, frozen=True, gc=False):
    """What a reference points at: an object, or by ``alias`` the name of another reference."""

    target: bytes
    target_type: str


class Snapshot(msgspec.Struct, frozen=True):
    """All references of a repository; None where the object a reference points at is missing."""

    id: bytes
    branches: dict[bytes, Branch | None]


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a repository comes from."""

    url: str


def parse_directory(id: bytes, data: bytes) -> Directory:
    """A tree's bytes as a directory; identifiers in it are as long as ``id`` (20 or 32 bytes)."""
    if _TREE[len(id)].fullmatch(data) is None:
        raise MalformedObject("a tree entry is malformed")
    entries = []
    for mode, name, target in _ENTRIES[len(id)].findall(data):
        kind, perms = _read_mode(mode)
        entries.append(DirectoryEntry(name, kind, target, perms))
    return Directory(id, entries)


@lru_cache(maxsize=64)
def _read_mode(mode: bytes) -> tuple[str, int]:
    """Type and permissions of a tree entry; a repository has a handful of different ones."""
    perms = int(mode, 8)
    return {0o040000: "dir", 0o160000: "rev"}.get(perms & 0o170000, "file"), perms


def parse_revision(id: bytes, data: bytes) -> Revision:
    """A commit's bytes as a revision. Only its tree is indispensable."""
    fields, message = _split(data)
    known: dict[bytes, bytes] = {}
    parents, extra = [], []
    for key, value in fields:
        if key == b"parent":
            parents.append(_object_id(value, len(id)))
        elif key in (b"tree", b"author", b"committer") and key not in known:
            known[key] = value
        else:
            extra.append((key, value))
    author, date = _parse_signature(known.get(b"author"))
    committer, committer_date = _parse_signature(known.get(b"committer"))
    return Revision(
        id=id,
        message=message,
        author=author,
        committer=committer,
        date=date,
        committer_date=committer_date,
        directory=_object_id(_required(known, b"tree"), len(id)),
        parents=parents,
        extra_headers=extra,
    )


def parse_release(id: bytes, data: bytes) -> Release:
    """An annotated tag's bytes as a release. Its target and name are indispensable."""
    fields, message = _split(data)
    known = dict(reversed(fields))  # of a repeated header the first one counts
    target_type = TARGET_TYPES.get(_required(known, b"type"))
    if target_type is None:
        raise MalformedObject("a tag points at an object of an unknown type")
    author, date = _parse_signature(known.get(b"tagger"))
    return Release(
        id=id,
        name=_required(known, b"tag"),
        message=message,
        target=_object_id(_required(known, b"object"), len(id)),
        target_type=target_type,
        author=author,
        date=date,
    )


PARSERS: Mapping[bytes, Callable[[bytes, bytes], Directory | Revision | Release]] = {
    b"tree": parse_directory,
    b"commit": parse_revision,
    b"tag": parse_release,
}
"""How to read the objects whose data is published, by git's name of their type."""


def parse_person(fullname: bytes) -> Person:
    """Split ``Name <email>``. An empty name is None, and so is a missing email (``<>`` is an empty one)."""
    name, bracket, rest = fullname.partition(b"<")
    email, closing, _ = rest.rpartition(b">")
    return Person(
        fullname=fullname,
        name=name.strip() or None,
        email=(email if closing else rest) if bracket else None,
    )


def build_snapshot(branches: Mapping[bytes, Branch | None], algorithm: str) -> Snapshot:
    """A snapshot with its intrinsic identifier, by the repository's own hash (``sha1`` or ``sha256``).

    The identifier is specified by the Software Heritage data model: the hash of the header ``snapshot
    <length>\\0`` and, for every branch in the order of names, ``<target type> <name>\\0<length of
    target>:<target>``, where the target of an alias is a name, and a dangling branch has the type
    ``dangling`` and an empty target.
    """
    manifest = b"".join(
        b"%s %s\0%d:%s" % (branch.target_type.encode(), name, len(branch.target), branch.target)
        for name, branch in sorted(
            (name, branch or Branch(b"", "dangling")) for name, branch in branches.items()
        )
    )
    digest = hashlib.new(algorithm, b"snapshot %d\0" % len(manifest) + manifest, usedforsecurity=False)
    return Snapshot(digest.digest(), dict(sorted(branches.items(), key=lambda item: item[0])))


def origin_key(url: str) -> bytes:
    """The key of an origin: SHA-1 of its URL, whatever hash the repository uses (20 bytes)."""
    return hashlib.sha1(url.encode(), usedforsecurity=False).digest()


def public_url(url: str) -> str:
    """``url`` without what could let somebody in: the journal is read by everybody.

    User and password go (of ``ssh://user:password@host`` only the password, the user is part of the address),
    and so do query and fragment, where access tokens are carried. Anything that is not a URL stays as it is,
    except that bytes which are not UTF-8 are replaced.
    """
    url = url.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    match = _USER_INFO.match(url)
    if match:
        scheme, user_info = match.groups()
        user = f"{user_info.partition(':')[0]}@" if scheme.lower().endswith("ssh") else ""
        url = f"{scheme}://{user}{url[match.end() :]}"
    return re.split(r"[?#]", url, maxsplit=1)[0] if "://" in url else url


def _split(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """The header fields and the message of a commit or tag; None where no empty line announces a message."""
    head, separator, message = data.partition(b"\n\n")
    fields = []
    for field in _FIELD_END.split(head.removesuffix(b"\n")):
        key, _, value = field.partition(b" ")
        if not key or b"\n" in key:
            raise MalformedObject("a header line is malformed")
        fields.append((key, value.replace(b"\n ", b"\n")))
    return fields, message if separator else None


def _parse_signature(line: bytes | None) -> tuple[Person | None, Date | None]:
    """``Name <email> seconds offset``; whatever else stands there is a person without a date."""
    if line is None:
        return None, None
    match = _SIGNATURE.fullmatch(line)
    if match is None:
        end = line.rfind(b">")
        return parse_person(line[: end + 1] if end >= 0 else line), None
    fullname, seconds, offset = match.groups()
    return parse_person(fullname), Date(Timestamp(int(seconds)), offset)


def _required(fields: Mapping[bytes, bytes], key: bytes) -> bytes:
    try:
        return fields[key]
    except KeyError:
        raise MalformedObject(f"the header {key.decode()} is missing") from None


def _object_id(digits: bytes, length: int) -> bytes:
    if len(digits) != 2 * length:
        raise MalformedObject(f"an identifier has {len(digits)} digits instead of {2 * length}")
    try:
        return unhexlify(digits)
    except ValueError:
        raise MalformedObject("an identifier is not hexadecimal") from None
