"""What the quarantine holds, read back page by page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
from confluent_kafka import Message

from journal_client.config import JournalSettings
from journal_client.errors import ConfigurationError
from journal_client.quarantine import refuse_two_places
from journal_client.scan import RangeReader, UnknownTopicError

Cursor = Mapping[str, int]
"""Where to go on reading; empty: from the beginning. It survives JSON."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that was set aside, why, and where it came from.

    Attributes:
        timestamp: of the record, in milliseconds since the epoch; None if unknown.
        truncated: key and value are missing because they were too large for the quarantine.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    truncated: bool = False

    @property
    def id(self) -> str:
        """Its coordinates, which a record keeps however often it is set aside."""
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def receipt(self) -> str:
        """Its coordinates and its time. A topic that is deleted and created anew gives coordinates again."""
        return f"{self.id}@{'-' if self.timestamp is None else self.timestamp}"


class Letters(Protocol):
    """A quarantine to read.

    Attributes:
        damaged: entries met so far that are no letters. They cost only themselves.
    """

    damaged: int

    def read(self, cursor: Cursor, limit: int) -> tuple[list[Letter], Cursor | None]:
        """At most ``limit`` letters from ``cursor`` on, and the cursor of those after them; None at the end.

        A record may be there twice, after a crash.

        Raises:
            ConfigurationError: the quarantine cannot be read.
            FatalError: no broker answers, or the topic was deleted and created anew.
            Unavailable: the brokers went away meanwhile; ask again.
        """


def open_letters(settings: JournalSettings) -> Letters:
    """The quarantine of these settings.

    Raises:
        ConfigurationError: there is none, or there are two.
    """
    refuse_two_places(settings.quarantine)
    if settings.quarantine.topic is not None:
        return TopicLetters(settings, settings.quarantine.topic)
    if settings.quarantine.file is not None:
        return FileLetters(settings.quarantine.file)
    raise ConfigurationError(
        "records set aside are not kept: there is no quarantine; "
        "set journal.quarantine.file or journal.quarantine.topic"
    )


class _Line(msgspec.Struct):
    """What ``FileQuarantine`` writes for one record; key and value are in base64."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None


class FileLetters:
    """The lines of a quarantine file. The cursor is ``{"at": byte}``. A file that is not there is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(_Line).decode
        self.damaged = 0

    def read(self, cursor: Cursor, limit: int) -> tuple[list[Letter], Cursor | None]:
        """See :class:`Letters`."""
        try:
            if self._path.exists() and not self._path.is_file():
                raise ConfigurationError(
                    f"{self._path} is no file that can be read back; change journal.quarantine.file"
                )
            with self._path.open("rb") as file:
                return self._page(file, cursor.get("at", 0), limit)
        except FileNotFoundError:
            return [], None
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {self._path}: {error.strerror}; change journal.quarantine.file"
            ) from error

    def _page(self, file: BinaryIO, at: int, limit: int) -> tuple[list[Letter], Cursor | None]:
        letters: list[Letter] = []
        file.seek(at)
        while len(letters) < limit:
            line = file.readline()
            if not line:
                return letters, None
            at += len(line)
            if line.strip():
                letters += self._letter(line)
        return letters, {"at": at} if file.read(1) else None

    def _letter(self, line: bytes) -> list[Letter]:
        try:
            found = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            return []
        timestamp = found.timestamp if found.timestamp > 0 else None
        where = (found.topic, found.partition, found.offset)
        return [Letter(*where, timestamp, found.reason, found.detail, found.key, found.value)]


class TopicLetters:
    """The records of a quarantine topic, partition by partition, up to what is there when asked.

    The cursor is ``{"<partition>": next_offset}``. A topic that is not there is empty.
    """

    def __init__(self, settings: JournalSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self.damaged = 0

    def read(self, cursor: Cursor, limit: int) -> tuple[list[Letter], Cursor | None]:
        """See :class:`Letters`."""
        letters: list[Letter] = []
        with RangeReader(self._settings) as reader:
            try:
                marks = reader.watermarks([self._topic])
            except UnknownTopicError:
                return [], None
            stands = {p: cursor.get(str(p.partition), mark.low) for p, mark in marks.items()}
            for partition, mark in marks.items():
                reader.start({partition: stands[partition]}, {partition: mark.high})
                self._read_partition(reader, letters, limit)
                stands |= reader.moved
        if all(stands[partition] >= mark.high for partition, mark in marks.items()):
            return letters, None
        return letters, {str(p.partition): next_offset for p, next_offset in stands.items()}

    def _read_partition(self, reader: RangeReader, letters: list[Letter], limit: int) -> None:
        while reader.standing and len(letters) < limit:
            for message in reader.fetch(limit - len(letters)):
                letter = _letter(message)
                if letter is None:
                    self.damaged += 1
                else:
                    letters.append(letter)


def _letter(message: Message) -> Letter | None:
    """The letter that ``TopicQuarantine`` made this record of; None if somebody else wrote it."""
    try:
        headers = {
            name: (_bytes(value) or b"").decode() for name, value in dict(message.headers() or []).items()
        }
        timestamp = int(headers.get("timestamp", "0"))
        return Letter(
            headers["topic"],
            int(headers["partition"]),
            int(headers["offset"]),
            timestamp if timestamp > 0 else None,
            headers["reason"],
            headers["detail"],
            _bytes(message.key()),
            _bytes(message.value()),
            "truncated" in headers,
        )
    except (KeyError, ValueError):
        return None


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
