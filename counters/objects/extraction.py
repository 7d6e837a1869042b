"""Which counters the records of the topics feed, and with what."""

from __future__ import annotations

from collections.abc import Callable, Collection

from counters.objects.derived import Derived
from journal_client.batch import Batch


class Extraction:
    """From batches of records to the keys of each counter: a topic's own, and values found inside messages.

    Args:
        derived: what is looked for inside messages.
        topic_prefix: topics are named ``<topic_prefix>.<object type>``.
    """

    def __init__(self, derived: Derived, topic_prefix: str) -> None:
        self._derived = derived
        self._prefix = f"{topic_prefix}."

    def object_type(self, topic: str) -> str:
        """What a topic is about."""
        return topic.removeprefix(self._prefix)

    def is_ours(self, topic: str) -> bool:
        """Whether a topic belongs to the journal."""
        return topic.startswith(self._prefix)

    def topic_of(self, object_type: str) -> str:
        """The topic about an object type."""
        return f"{self._prefix}{object_type}"

    def decoder(self, topic: str) -> Callable[[bytes], object] | None:
        """Values are decoded only where a derived counter looks into them."""
        return self._derived.decoder(self.object_type(topic))

    def counters_of(self, topic: str) -> list[str]:
        """What a topic feeds."""
        object_type = self.object_type(topic)
        return [object_type, *self._derived.feeds(object_type)]

    def sources_of(self, counter: str) -> list[str]:
        """The object types whose messages a counter looks into, in order; none for a topic's own counter."""
        return sorted(self._derived.sources.get(counter, ()))

    def topics_of(self, counter: str) -> list[str]:
        """What may feed a counter, in order."""
        return [self.topic_of(name) for name in sorted({counter, *self.sources_of(counter)})]

    def keys(self, batch: Batch, only: Collection[str] | None = None) -> dict[str, list[bytes]]:
        """The keys of each counter that ``batch`` feeds, or of those in ``only``."""
        keys = {self.object_type(topic): some for topic, some in batch.keys.items() if some}
        found: dict[str, set[bytes]] = {}
        for topic, values in batch.values.items():
            counters = self._derived.feeds(self.object_type(topic))
            if not counters:
                continue
            decoded = [value for value in values if value is not None]
            for number, counter in enumerate(counters):
                some: list[tuple[bytes, ...]] = [value[number] for value in decoded]  # type: ignore[index]
                found.setdefault(counter, set()).update(*some)
        for counter, distinct in found.items():
            keys[counter] = [*keys.get(counter, ()), *distinct]
        return keys if only is None else {name: some for name, some in keys.items() if name in only}
