"""Dead letters: records that cannot be used, kept with their reason and coordinates.

A record is in quarantine before the position moves past it, so it is never neither counted nor kept. After a
crash it may be there twice; its coordinates tell.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from journal_client.config import QuarantineSettings
from journal_client.errors import ConfigurationError, Unavailable
from journal_client.ledger import Skip
from journal_client.librdkafka import log

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT = 10.0
"""Seconds to wait for the quarantine topic before the batch is kept and tried again."""


class Quarantine(Protocol):
    """Where records that cannot be used go."""

    def put(self, message: Message, reason: Skip, detail: str) -> None:
        """Take a record; it is durable only after ``flush``."""

    def flush(self, timeout: float) -> None:
        """Make everything taken durable within ``timeout`` seconds.

        Raises:
            Unavailable: it is not durable yet; call again.
        """

    def close(self) -> None:
        """Release what is held."""


def refuse_two_places(settings: QuarantineSettings) -> None:
    """A record has one place.

    Raises:
        ConfigurationError: the settings name a file and a topic.
    """
    if settings.topic is not None and settings.file is not None:
        raise ConfigurationError(
            f"journal.quarantine.topic ({settings.topic}) and journal.quarantine.file ({settings.file}) "
            "are both set; keep one"
        )


def open_quarantine(settings: QuarantineSettings, producer_config: Mapping[str, Any]) -> Quarantine:
    """The quarantine the settings ask for; without one, records are only counted and logged."""
    refuse_two_places(settings)
    if settings.topic is not None:
        return TopicQuarantine(settings.topic, producer_config)
    if settings.file is not None:
        return FileQuarantine(settings.file)
    return LogQuarantine()


class LogQuarantine:
    """Only says what was set aside."""

    def put(self, message: Message, reason: Skip, detail: str) -> None:
        _log(message, reason, detail)

    def flush(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


class FileQuarantine:
    """One JSON line per record, appended and synced."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab", buffering=0)
            torn = _is_torn(path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot open {path}: {error.strerror}; change journal.quarantine.file"
            ) from error
        self._waiting = bytearray(b"\n" if torn else b"")
        self._synced = True

    def put(self, message: Message, reason: Skip, detail: str) -> None:
        _log(message, reason, detail)
        line = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            "reason": reason.value,
            "detail": detail,
            "key": _base64(message.key()),
            "value": _base64(message.value()),
        }
        self._waiting += json.dumps(line).encode() + b"\n"

    def flush(self, timeout: float) -> None:
        if self._synced and not self._waiting.strip():
            return
        self._synced = False
        try:
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise Unavailable(f"cannot write to {self._file.name}: {error.strerror}") from error
        self._synced = True

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class _Letter:
    """What goes to the quarantine topic for one record."""

    key: str | bytes | None
    value: str | bytes | None
    headers: list[tuple[str, str | bytes | None]]

    def without_content(self) -> _Letter:
        """The coordinates are worth more than the bytes."""
        return _Letter(None, None, [*self.headers, ("truncated", "value too large for this topic")])


class TopicQuarantine:
    """The record as it was, with its reason and coordinates as headers, in a topic of its own.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(self, topic: str, producer_config: Mapping[str, Any]) -> None:
        self._topic = topic
        try:
            self._producer = Producer({**producer_config, "enable.idempotence": True}, logger=log)
        except KafkaException as error:
            raise ConfigurationError(f"journal.kafka: {error.args[0].str()}") from error
        self._waiting: list[_Letter] = []
        """Letters that the producer has not taken, or has given back."""
        self._reason = ""
        """Why it gave back the last one."""

    def put(self, message: Message, reason: Skip, detail: str) -> None:
        _log(message, reason, detail)
        headers: list[tuple[str, str | bytes | None]] = [
            ("reason", reason.value),
            ("detail", detail),
            ("topic", message.topic()),
            ("partition", str(message.partition())),
            ("offset", str(message.offset())),
            ("timestamp", str(message.timestamp()[1])),  # the letter's own is when it was set aside
        ]
        self._send(_Letter(message.key(), message.value(), headers))

    def _send(self, letter: _Letter) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._give_back(letter, error)

        try:
            self._producer.produce(
                self._topic, letter.value, letter.key, on_delivery=delivered, headers=letter.headers
            )
        except BufferError:
            self._waiting.append(letter)
        except KafkaException as error:  # too large is said at once
            self._give_back(letter, error.args[0])

    def _give_back(self, letter: _Letter, error: KafkaError) -> None:
        too_large = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        self._waiting.append(letter.without_content() if too_large else letter)
        self._reason = error.str()

    def flush(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        in_flight = self._producer.flush(timeout)
        if self._waiting:  # once more with what was given back
            waiting, self._waiting = self._waiting, []
            for letter in waiting:
                self._send(letter)
            in_flight = self._producer.flush(max(0.0, deadline - time.monotonic()))
        if in_flight or self._waiting:
            reason = f": {self._reason}" if self._reason else ""
            raise Unavailable(f"quarantine topic {self._topic} does not take records{reason}")
        self._reason = ""

    def close(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT)


def _is_torn(path: Path) -> bool:
    """Whether a crash cut the last line of the file short."""
    if not path.is_file():  # a pipe or device has no last byte
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def _log(message: Message, reason: Skip, detail: str) -> None:
    logger.warning(
        "record set aside: topic=%s partition=%d offset=%d reason=%s detail=%r",
        message.topic(),
        message.partition(),
        message.offset(),
        reason,
        detail,
    )


def _base64(data: str | bytes | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
