"""Keeps a writer from running ahead of the readers of a broker that holds little."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from journal_client.batch import Partition
from journal_client.errors import DeliveryError
from journal_client.librdkafka import log, plain

MAX_MESSAGES, MAX_BYTES = 50_000, 5 * 1024 * 1024 // 2
"""Half of what the embedded broker holds per partition, for what the sizes below leave out."""

_RECORD_OVERHEAD = 70
"""Bytes that a record and the head of a batch of one add at most: tiny records are not nothing."""

_ASK_EVERY = 0.05


@dataclass(slots=True)
class _Ahead:
    """Records delivered to one partition that the group has not committed yet."""

    records: deque[tuple[int, int]] = field(default_factory=deque)
    """Offset and bytes of each, oldest first."""

    size: int = 0


class Throttle:
    """Holds a writer back while any partition has too much that a consumer group has not committed.

    Until the broker answers, a record may be for any partition, so records on their way count for every one.

    Args:
        brokers: Kafka bootstrap servers.
        group_id: the group that must have read; this never joins it.
        max_messages: records per partition that the group may be behind.
        max_bytes: their bytes.
        patience: seconds without any progress of the group before giving up.
        kafka: further librdkafka settings.
    """

    def __init__(
        self,
        brokers: str,
        group_id: str,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        patience: float = 300.0,
        kafka: Mapping[str, Any] | None = None,
    ) -> None:
        self._group = group_id
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._patience = patience
        self._ahead: dict[Partition, _Ahead] = defaultdict(_Ahead)
        self._messages_on_their_way = 0
        self._bytes_on_their_way = 0
        # The fullest partition. Deliveries raise these; only asking for the committed offsets lowers them.
        self._most_messages = 0
        self._most_bytes = 0
        own = {"bootstrap.servers": brokers, "group.id": group_id, "enable.auto.commit": False}
        self._consumer = Consumer({**plain(kafka or {}), **own}, logger=log)

    def admit(self, size: int, poll: Callable[[float], object]) -> None:
        """Wait until one more record of ``size`` bytes may be written, and note that it is on its way.

        Args:
            size: bytes of key and value.
            poll: lets the producer work for so many seconds.

        Raises:
            DeliveryError: the group made no progress for ``patience`` seconds.
        """
        if self._full:
            self._wait(poll)
        self._messages_on_their_way += 1
        self._bytes_on_their_way += size + _RECORD_OVERHEAD

    def delivered(self, partition: Partition, offset: int | None, size: int) -> None:
        """Note the fate of one record: its offset, or None if it was not written."""
        size += _RECORD_OVERHEAD
        self._messages_on_their_way -= 1
        self._bytes_on_their_way -= size
        if offset is None:
            return
        ahead = self._ahead[partition]
        ahead.records.append((offset, size))
        ahead.size += size
        self._most_messages = max(self._most_messages, len(ahead.records))
        self._most_bytes = max(self._most_bytes, ahead.size)

    def close(self) -> None:
        """End the connection that asks for the committed offsets."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _full(self) -> bool:
        return (
            self._most_messages + self._messages_on_their_way >= self._max_messages
            or self._most_bytes + self._bytes_on_their_way >= self._max_bytes
        )

    def _wait(self, poll: Callable[[float], object]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            if self._forget_committed():
                deadline = time.monotonic() + self._patience
            if not self._full:
                return
            if time.monotonic() > deadline:
                raise DeliveryError(
                    f"group {self._group} read nothing for {self._patience:g} s although "
                    f"{self._most_messages} records of a partition wait for it"
                )
            poll(_ASK_EVERY)

    def _forget_committed(self) -> bool:
        """Ask how far the group has read and drop what lies before; whether anything did."""
        wanted = [TopicPartition(*partition) for partition, ahead in self._ahead.items() if ahead.records]
        try:
            answers = self._consumer.committed(wanted, timeout=5.0) if wanted else []
        except KafkaException as error:
            log.debug("committed offsets of %s unknown: %s", self._group, error)
            return False
        progress = False
        for answer in answers:
            ahead = self._ahead[Partition(answer.topic, answer.partition)]
            while ahead.records and ahead.records[0][0] < answer.offset:
                ahead.size -= ahead.records.popleft()[1]
                progress = True
        self._most_messages = max((len(ahead.records) for ahead in self._ahead.values()), default=0)
        self._most_bytes = max((ahead.size for ahead in self._ahead.values()), default=0)
        return progress
