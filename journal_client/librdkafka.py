"""The client library's settings, as the loop needs them, and its log."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException

from journal_client.config import GroupProtocol, JournalSettings
from journal_client.errors import BrokerUnreachable, FatalError

log = logging.getLogger("journal_client.librdkafka")

# Memory of a reader: librdkafka holds up to queued.max.messages.kbytes of payload, and about 400 bytes more
# per record, so tiny records cost far more than they weigh. It stops fetching a partition at
# queued.min.messages, and one answer of a broker brings at most fetch.max.bytes, however many partitions it
# is about (fetch.message.max.bytes of each). More is not faster: memory that was just written is still in the
# processor's cache when it is read. See docs/operations.md for the formula.
CONSUMER_DEFAULTS: dict[str, Any] = {
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 20_000,
    "fetch.max.bytes": 4_194_304,
    "fetch.message.max.bytes": 1_048_576,
    # A partition whose queue is full is looked at again after this long. The library's default of a second
    # leaves a reader of full topics idle nine tenths of the time: the queue is small and drained in 20 ms.
    "fetch.queue.backoff.ms": 10,
    "topic.metadata.refresh.interval.ms": 30_000,
    "log.connection.close": False,
}


def shared_config(settings: JournalSettings) -> dict[str, Any]:
    """What every client of these brokers needs: address, name, and whatever ``journal.kafka`` says."""
    return {
        "bootstrap.servers": settings.brokers,
        "client.id": f"counters-{socket.gethostname()}-{os.getpid()}",
        **plain(settings.kafka),
    }


def consumer_config(settings: JournalSettings) -> dict[str, Any]:
    """The whole configuration of the consumer.

    The loop decides every position itself: commits are explicit, nothing is stored behind its back, and an
    offset that does not exist is an error to be looked at instead of a silent jump.
    """
    config = {
        **CONSUMER_DEFAULTS,
        **shared_config(settings),
        "group.id": settings.group_id,
        "group.protocol": settings.group_protocol.value,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
    }
    if settings.group_instance_id is not None:
        config["group.instance.id"] = settings.group_instance_id
    if settings.group_protocol is GroupProtocol.CLASSIC:
        config.setdefault("partition.assignment.strategy", "range,roundrobin")
    return config


def producer_config(settings: JournalSettings) -> dict[str, Any]:
    """The configuration of a producer to the same brokers; consumer settings in ``journal.kafka`` are left
    out."""
    consumer_only = (
        "session.",
        "heartbeat.",
        "max.poll.",
        "fetch.",
        "queued.min",
        "queued.max",
        "partition.assign",
    )
    return {k: v for k, v in shared_config(settings).items() if not k.startswith(consumer_only)}


def is_incremental(config: Mapping[str, Any]) -> bool:
    """Whether rebalances take and give single partitions (cooperative, KIP-848) instead of all of them."""
    return bool(
        config["group.protocol"] == "consumer"
        or "cooperative" in config.get("partition.assignment.strategy", "")
    )


def plain(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka wants ``"true"`` and ``"false"``; Python's ``False`` for an SSL flag would read as unset."""
    return {k: str(v).lower() if isinstance(v, bool) else v for k, v in kafka.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's own words out of the log, unless everything is logged."""
    level = log.level
    if log.getEffectiveLevel() > logging.DEBUG:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def connect(settings: JournalSettings, config: Mapping[str, Any]) -> Consumer:
    """A consumer of this configuration, which a broker has answered.

    Raises:
        FatalError: librdkafka refuses a setting.
        BrokerUnreachable: no broker answered within ``journal.start_timeout``.
    """
    try:
        consumer = Consumer(dict(config), logger=log)
    except KafkaException as error:
        raise FatalError(f"journal.kafka: {error.args[0].str()}") from error
    try:
        consumer.list_topics(timeout=settings.start_timeout)
    except KafkaException as error:
        with quiet():  # the one line below says it all
            consumer.close()
        raise BrokerUnreachable(
            f"no Kafka broker at {settings.brokers} answered within "
            f"{settings.start_timeout:g} s ({error.args[0].str()}); change journal.brokers"
        ) from error
    return consumer


class RateLimit(logging.Filter):
    """Lets a message through once per ``seconds`` and says how many of its kind were held back.

    A dead broker makes librdkafka write the same line several times a second for every connection.
    """

    def __init__(self, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().split(" ", 1)[0]  # librdkafka's facility: FAIL, MAXPOLL, ...
        now = self._clock()
        with self._lock:
            last, held = self._seen.get(kind, (-self._seconds, 0))
            if now - last < self._seconds:
                self._seen[kind] = (last, held + 1)
                return False
            self._seen[kind] = (now, 0)
        if held:
            record.msg = f"{record.getMessage()} ({held} more like this suppressed)"
            record.args = ()
        return True


log.addFilter(RateLimit())  # once: a filter per client would count what another one holds back
