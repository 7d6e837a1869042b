"""What librdkafka reports besides records: errors, and what each of them means here.

Callbacks run inside ``consume()``. One that raised would destroy the records that call had fetched, so they
keep the first failure, and the loop raises it between two calls.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from confluent_kafka import KafkaError, Message, TopicPartition

from journal_client.batch import Partition
from journal_client.config import JournalSettings
from journal_client.errors import FatalError, FencedError
from journal_client.health import Health
from journal_client.metrics import JournalMetrics

logger = logging.getLogger(__name__)


class Reports:
    """Takes errors in, from callbacks and in the place of records.

    Attributes:
        missing: subscribed topics that the broker does not know.
    """

    def __init__(self, settings: JournalSettings, health: Health, metrics: JournalMetrics) -> None:
        self._settings = settings
        self._health = health
        self._metrics = metrics
        self._failure: Exception | None = None
        self.missing: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Keep an exception of a callback; the first one counts."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise what a callback kept, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def count(self, error: KafkaError) -> None:
        """An error that needs no more than to be counted."""
        self._metrics.errors.labels(error.name()).inc()

    def on_commit(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        """Callback: the fate of a commit. A failed one costs nothing, the view has its own position."""
        if error is not None:
            self.count(error)

    def on_error(self, error: KafkaError) -> None:
        """Callback: an error of the client as a whole."""
        self.count(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._health.brokers_down = True
        if error.fatal():
            self.failed(self._fatal(error))

    def stopped_partition(self, message: Message) -> Partition | None:
        """Take in an error that came in the place of a record; the partition whose reading it ended, if any.

        Raises:
            FatalError: the consumer cannot go on.
        """
        error = message.error()
        if error is None:
            return None
        self.count(error)
        if error.fatal() or error.code() == KafkaError._FATAL:
            raise self._fatal(error)
        topic = message.topic() or ""
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self._not_there(topic)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            return Partition(topic, message.partition() or 0)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            logger.error("a step took longer than max.poll.interval.ms; the partitions are lost, rejoining")
        else:
            logger.warning("journal error: %s", error)
        return None

    def found(self, topics: Collection[str]) -> None:
        """These topics exist after all."""
        for topic in self.missing.intersection(topics):
            self.missing.remove(topic)
            self._metrics.topic_missing.remove(topic)

    def _not_there(self, topic: str) -> None:
        if topic not in self.missing:
            self.missing.add(topic)
            self._metrics.topic_missing.labels(topic).set(1)
            if topic.startswith("^"):  # the pattern for all of them
                logger.warning("no topic below %s exists (yet); check journal.prefix", self._settings.prefix)
            else:
                logger.warning(
                    "topic %s does not exist (yet); check journal.prefix, journal.object_types", topic
                )

    def _fatal(self, error: KafkaError) -> FatalError:
        # in the place of a record its code is only "fatal", and the cause is in its text
        fenced = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
        if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED) or fenced in error.str():
            return FencedError(
                f"two members share group.instance.id={self._settings.group_instance_id} in group "
                f"{self._settings.group_id}; give each its own journal.group_instance_id"
            )
        return FatalError(f"Kafka: {error.str()}")
