"""Publishing the objects of a git repository to a journal.

1. Read the references, and list the objects that are reachable from them.
2. Ask for the type and size of each: contents are published from that alone, their data is never read.
3. Read the data of the others, and publish directories, revisions and releases.
4. Publish the snapshot (all references) and the origin, when everything they lead to is on its way.
5. Wait until the journal has taken everything.

Loading a repository again publishes the same keys again; whoever counts different keys sees no change. So a
load that was interrupted is simply started anew.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from counters.errors import InputError
from counters.load.objects import (
    OBJECT_TYPES,
    PARSERS,
    TARGET_TYPES,
    Branch,
    Content,
    MalformedObject,
    Origin,
    Snapshot,
    build_snapshot,
    encode,
    origin_key,
    public_url,
)
from counters.load.repository import GitError, IdList, Reference, Repository

logger = logging.getLogger(__name__)

PROGRESS_EVERY = 1_000
"""Objects between two reports of progress."""

MAX_BYTES = 1_000_000
"""Bytes of key and value together that a broker takes by default, with room for its framing."""

FLUSH_TIMEOUT = 60.0
"""Seconds the journal may take for what is still on its way at the end of a repository."""


class ObjectSink(Protocol):
    """Where objects go: a ``journal_client.writer.JournalWriter``, or a list in a test."""

    def write(self, object_type: str, key: bytes, value: bytes | None) -> None:
        """Send one object; may return before it is stored."""

    def flush(self, timeout: float) -> None:
        """Wait until everything written is stored; raise if it is not within ``timeout`` seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is. ``total`` is None while git is listing the objects."""

    done: int
    total: int | None


class Skip(StrEnum):
    """Why an object was not published."""

    MISSING = "missing"
    """The repository should have it and has not (a partial clone), or cannot read it."""

    MALFORMED = "malformed"
    """Git read it, and it is not what git says it is."""

    TOO_LARGE = "too large"
    """Its value does not fit into a record of the journal."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of one repository.

    Attributes:
        origin: the URL published.
        snapshot: identifier of the snapshot published.
        objects: number of objects published, for every object type.
        skipped: number of objects not published, for every ``Skip`` that occurred.
        exact: False if git could not walk the history and everything present was published instead.
        seconds: how long it took.
    """

    origin: str
    snapshot: bytes
    objects: Mapping[str, int]
    skipped: Mapping[Skip, int]
    exact: bool
    seconds: float

    @property
    def total(self) -> int:
        """Objects published, of all types."""
        return sum(self.objects.values())


def load_repository(
    path: Path,
    sink: ObjectSink,
    *,
    origin: str | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[Progress], None] | None = None,
) -> LoadReport:
    """Publish every object reachable from the references of a repository, its snapshot and its origin.

    Args:
        path: a work tree, a linked work tree or a bare repository.
        sink: receives the objects; flushed at the end.
        origin: URL to publish instead of the one the repository names. Credentials in it are dropped.
        max_bytes: objects whose key and value are larger together are skipped, and counted as such.
        progress: called now and then, from this thread.

    Raises:
        InputError: there is no repository, or git cannot read it. Whatever the sink raises is passed on.
    """
    started = time.monotonic()
    repository = Repository.open(path)
    load = _Load(repository, sink, max_bytes, progress or (lambda _: None))
    url = public_url(origin) if origin else repository.origin
    try:
        snapshot = load.publish(url)
    except GitError as error:
        raise InputError(f"{path}: git cannot read the repository ({error})") from None
    sink.flush(FLUSH_TIMEOUT)
    return LoadReport(
        origin=url,
        snapshot=snapshot.id,
        objects={object_type: load.objects[object_type] for object_type in OBJECT_TYPES},
        skipped=dict(+load.skipped),
        exact=load.exact,
        seconds=time.monotonic() - started,
    )


@dataclass(slots=True)
class _Load:
    """One repository on its way, and what has been counted so far."""

    repository: Repository
    sink: ObjectSink
    max_bytes: int
    progress: Callable[[Progress], None]
    objects: Counter[str] = field(default_factory=Counter)
    skipped: Counter[Skip] = field(default_factory=Counter)
    exact: bool = True
    _total: int = 0
    _done: int = 0

    def publish(self, url: str) -> Snapshot:
        """Steps 1 to 4."""
        self.progress(Progress(0, None))
        references = self.repository.references()
        kinds: dict[bytes, bytes] = dict.fromkeys((reference.target for reference in references), b"missing")
        length = self.repository.id_length
        with IdList(length) as reachable, IdList(length) as with_data:
            self.exact = self.repository.list_reachable(references, reachable)
            self._total = len(reachable) + 2
            self._publish_contents(reachable, with_data, kinds)
            self._publish_objects(with_data)
        snapshot = build_snapshot(_branches(references, kinds), self.repository.object_format)
        self._write("snapshot", snapshot.id, encode(snapshot))
        self._write("origin", origin_key(url), encode(Origin(url)))
        self.progress(Progress(self._total, self._total))
        return snapshot

    def _publish_contents(self, reachable: IdList, with_data: IdList, kinds: dict[bytes, bytes]) -> None:
        """Step 2: publish the blobs, list the others in ``with_data``, and note what references point at."""
        unlisted = set(kinds)
        with closing(self.repository.headers(reachable)) as headers:
            for digits, kind, size in headers:
                if digits in kinds:
                    kinds[digits] = kind
                    unlisted.discard(digits)
                if kind == b"blob":
                    key = bytes.fromhex(digits.decode())
                    self._write("content", key, encode(Content(key, size)))
                elif kind == b"missing":
                    self._skip(digits, Skip.MISSING)
                else:
                    with_data.append(digits)
        # git passes over references to objects that are not there.
        self.skipped[Skip.MISSING] += len(unlisted)

    def _publish_objects(self, with_data: IdList) -> None:
        """Step 3."""
        with closing(self.repository.objects(with_data)) as objects:
            for (digits, kind, _), data in objects:
                if kind == b"missing":
                    self._skip(digits, Skip.MISSING)
                    continue
                key = bytes.fromhex(digits.decode())
                try:
                    value = encode(PARSERS[kind](key, data))
                except MalformedObject as error:
                    self._skip(digits, Skip.MALFORMED, f" ({error})")
                    continue
                self._write(TARGET_TYPES[kind], key, value)

    def _write(self, object_type: str, key: bytes, value: bytes) -> None:
        if len(key) + len(value) > self.max_bytes:
            self._skip(key.hex().encode(), Skip.TOO_LARGE, f" ({len(value):,} bytes)")
            return
        self.sink.write(object_type, key, value)
        self.objects[object_type] += 1
        self._advance()

    def _skip(self, digits: bytes, reason: Skip, detail: str = "") -> None:
        # A partial clone may miss a million objects.
        level = logging.DEBUG if reason is Skip.MISSING else logging.WARNING
        logger.log(level, "%s: object %s is %s%s", self.repository.git_dir, digits.decode(), reason, detail)
        self.skipped[reason] += 1
        self._advance()

    def _advance(self) -> None:
        self._done += 1
        if self._done % PROGRESS_EVERY == 0:
            self.progress(Progress(self._done, self._total))


def _branches(references: list[Reference], kinds: Mapping[bytes, bytes]) -> dict[bytes, Branch | None]:
    branches: dict[bytes, Branch | None] = {}
    for name, target, alias in references:
        target_type = TARGET_TYPES.get(kinds[target])
        if alias:
            branches[name] = Branch(alias, "alias")
        else:
            branches[name] = Branch(bytes.fromhex(target.decode()), target_type) if target_type else None
    return branches
