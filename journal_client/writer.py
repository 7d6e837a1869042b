"""Writes records to the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from journal_client.batch import Partition
from journal_client.errors import BrokerUnreachable, ConfigurationError, DeliveryError
from journal_client.librdkafka import log, plain
from journal_client.serialization import partition_of, show_key
from journal_client.throttle import Throttle

PRODUCER_DEFAULTS: dict[str, Any] = {
    "enable.idempotence": True,  # a repeated request after a lost answer is recognised by the broker
    "acks": "all",
    # Where Java's default partitioner puts a key, and what an explicit partition key is hashed with.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "compression.type": "lz4",  # halves MessagePack's repeated field names at hardly any cost
    "delivery.timeout.ms": 60_000,
    "message.max.bytes": 1_048_588,  # the broker's own default; the client's is smaller
    "queue.buffering.max.kbytes": 65_536,
    # A dead broker makes the library repeat one line many times a second; the writer reports it once.
    "log_level": 2,
}

CHECK_TIMEOUT = 10.0
"""Seconds to wait for a broker before the first record."""


class JournalWriter:
    """An idempotent producer to the topics ``<prefix>.<object type>``, for use by one thread.

    Writing is asynchronous: a record that could not be delivered raises at the next :meth:`write` or
    :meth:`flush`, and leaving the context without an error flushes.

    Args:
        brokers: Kafka bootstrap servers, comma separated.
        prefix: first part of the topics' names.
        kafka: further librdkafka settings; they win over ``PRODUCER_DEFAULTS``.
        throttle: holds :meth:`write` back while a group has not read enough yet.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(
        self,
        brokers: str,
        prefix: str,
        *,
        kafka: Mapping[str, Any] | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        config = {**PRODUCER_DEFAULTS, **plain(kafka or {}), "bootstrap.servers": brokers}
        if "message.timeout.ms" in config:  # the same setting by its other name
            config["delivery.timeout.ms"] = config.pop("message.timeout.ms")
        self._brokers = brokers
        self._prefix = prefix
        self._patience = float(config["delivery.timeout.ms"]) / 1000
        self._throttle = throttle
        self._partitions: dict[str, int] = {}
        self._checked = False
        self._failed = 0
        self._failure = ""
        self._trouble = ""
        callbacks = {"on_delivery": self._delivered, "error_cb": self._troubled}
        try:
            self._producer = Producer({**config, **callbacks}, logger=log)
        except KafkaException as error:
            raise ConfigurationError(f"journal.kafka: {error.args[0].str()}") from error

    def check(self, timeout: float = CHECK_TIMEOUT) -> None:
        """Make sure that a broker answers; done by itself before the first record.

        Raises:
            BrokerUnreachable: none did within ``timeout`` seconds.
        """
        try:
            self._producer.list_topics(timeout=timeout)
        except KafkaException as error:
            self._producer.poll(0)  # brings the reason
            reason = self._trouble or error.args[0].str()
            raise BrokerUnreachable(
                f"no broker at {self._brokers} answered within {timeout:g} s ({reason}); "
                f"check journal.brokers"
            ) from error
        self._checked = True

    def write(
        self, object_type: str, key: bytes, value: bytes | None, *, partition_key: bytes | None = None
    ) -> None:
        """Queue one record; waits while the queue is full or the throttle holds.

        Args:
            object_type: last part of the topic's name.
            key: identity of the object.
            value: None writes a tombstone.
            partition_key: records with the same one land in the same partition, whatever their keys, for as
                long as the topic keeps its number of partitions. Default: the key decides.

        Raises:
            DeliveryError: an earlier record was not delivered, or this one cannot be.
            BrokerUnreachable: no broker answered (first record only).
        """
        if self._failed:
            self._raise_failure()
        if not self._checked:
            self.check()
        if self._throttle is not None:
            self._throttle.admit(len(key) + len(value or b""), self._producer.poll)
        topic = f"{self._prefix}.{object_type}"
        partition = -1 if partition_key is None else partition_of(partition_key, self._partition_count(topic))
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._producer.produce(topic, value=value, key=key, partition=partition)
                break
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise DeliveryError(
                        f"the queue to {self._brokers} stayed full for {self._patience:g} s"
                        f"{self._because()}; check journal.brokers"
                    ) from None
            except KafkaException as error:
                raise DeliveryError(_undelivered(topic, key, error.args[0])) from error
        self._producer.poll(0)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything written is acknowledged.

        Args:
            timeout: seconds; default: as long as a delivery may take.

        Raises:
            DeliveryError: something was not delivered, or not acknowledged in time.
        """
        timeout = self._patience + 1.0 if timeout is None else timeout
        waiting = self._producer.flush(timeout)
        if self._failed:
            self._raise_failure()
        if waiting:
            raise DeliveryError(
                f"{waiting} records to {self._brokers} were not acknowledged within {timeout:g} s"
                f"{self._because()}"
            )

    def close(self) -> None:
        """Flush.

        Raises:
            DeliveryError: as :meth:`flush`.
        """
        if self._failed or len(self._producer):
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the first error is the one to report; what can still be delivered is
            self._producer.flush(1.0)

    def _partition_count(self, topic: str) -> int:
        count = self._partitions.get(topic, 0)
        deadline = time.monotonic() + self._patience
        while not count:  # a new topic has none for a moment
            try:
                count = len(self._producer.list_topics(topic, timeout=CHECK_TIMEOUT).topics[topic].partitions)
            except KafkaException as error:
                log.debug("no metadata of %s: %s", topic, error)
            if not count and time.monotonic() > deadline:
                raise DeliveryError(f"{topic} has no partitions after {self._patience:g} s{self._because()}")
            if not count:
                self._producer.poll(0.1)
        self._partitions[topic] = count
        return count

    # librdkafka runs the callbacks inside poll() and flush(). What they raise is lost together with other
    # deliveries, so they only take notes.

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed += 1
            if self._failed == 1:
                self._failure = _undelivered(message.topic() or "", message.key(), error)
        if self._throttle is not None:
            size = len(message.key() or b"") + len(message.value() or b"")
            partition = Partition(message.topic() or "", message.partition() or 0)
            self._throttle.delivered(partition, None if error is not None else message.offset(), size)

    def _troubled(self, error: KafkaError) -> None:
        # "All brokers are down" follows the reason and must not hide it.
        if not self._trouble or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str()

    def _raise_failure(self) -> None:
        count, failure = self._failed, self._failure
        self._failed, self._failure = 0, ""
        raise DeliveryError(failure if count == 1 else f"{failure} (and {count - 1} more)")

    def _because(self) -> str:
        return f" (last trouble: {self._trouble})" if self._trouble else ""


def _undelivered(topic: str, key: bytes | None, error: KafkaError) -> str:
    return f"record {show_key(key)} was not written to {topic}: {error.str()}"
