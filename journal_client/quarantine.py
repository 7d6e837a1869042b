"""Dead letters: records that cannot be used, kept with their reason and coordinates.

A record is in quarantine before the position moves past it, so it is never neither counted nor kept. After a
crash it may be there twice; its coordinates tell.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from journal_client.config import QuarantineSettings
from journal_client.errors import ConfigurationError, Unavailable
from journal_client.ledger import Skip

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


def open_quarantine(settings: QuarantineSettings, producer_config: Mapping[str, Any]) -> Quarantine:
    """The quarantine the settings ask for; without one, records are only counted and logged."""
    if settings.topic is not None and settings.file is not None:
        raise ConfigurationError(
            f"journal.quarantine.topic ({settings.topic}) and journal.quarantine.file ({settings.file}) "
            "are both set; keep one"
        )
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
            self._file = path.open("ab")
        except OSError as error:
            raise ConfigurationError(
                f"cannot open {path}: {error.strerror}; change journal.quarantine.file"
            ) from error
        self._dirty = False

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
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise Unavailable(f"cannot write to {self._file.name}: {error.strerror}") from error
        self._dirty = True

    def flush(self, timeout: float) -> None:
        if not self._dirty:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise Unavailable(f"cannot write to {self._file.name}: {error.strerror}") from error
        self._dirty = False

    def close(self) -> None:
        self._file.close()


class TopicQuarantine:
    """The record as it was, with its reason and coordinates as headers, in a topic of its own."""

    def __init__(self, topic: str, producer_config: Mapping[str, Any]) -> None:
        self._topic = topic
        self._producer = Producer({**producer_config, "enable.idempotence": True})
        self._failed: list[tuple[KafkaError, str | bytes | None, list[tuple[str, str | bytes | None]]]] = []

    def put(self, message: Message, reason: Skip, detail: str) -> None:
        _log(message, reason, detail)
        headers: list[tuple[str, str | bytes | None]] = [
            ("reason", reason.value),
            ("detail", detail),
            ("topic", message.topic()),
            ("partition", str(message.partition())),
            ("offset", str(message.offset())),
        ]
        self._produce(message.key(), message.value(), headers)

    def _produce(
        self,
        key: str | bytes | None,
        value: str | bytes | None,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self._failed.append((error, key, headers))

        try:
            self._producer.produce(self._topic, value, key, on_delivery=delivered, headers=headers)
        except BufferError:
            self.flush(FLUSH_TIMEOUT)
            self._producer.produce(self._topic, value, key, on_delivery=delivered, headers=headers)
        except KafkaException as error:
            # MSG_SIZE_TOO_LARGE is said at once: the coordinates are worth more than the bytes
            self._failed.append((error.args[0], key, headers))

    def flush(self, timeout: float) -> None:
        waiting = self._producer.flush(timeout)
        failed, self._failed = self._failed, []
        for error, key, headers in failed:
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._produce(None, None, [*headers, ("truncated", "value too large for this topic")])
            else:
                self._produce(key, None, headers)
        if waiting or failed:
            raise Unavailable(f"quarantine topic {self._topic} does not take records", retry_after=1.0)

    def close(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT)


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
