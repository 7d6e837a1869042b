"""A batch of records of one consumer, and where reading goes on after it.

An *offset* always means the next one to read (Kafka's convention for commits), and is always called
``next_offset``. Nothing outside this package adds one to an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(slots=True)
class Batch:
    """Records of several topics and partitions, in order within each partition.

    Attributes:
        keys: for each topic, the keys of its records. Never None; ``b""`` is a key.
        values: for each topic whose handler has a decoder, the decoded values, aligned with ``keys[topic]``.
            None where the record is a tombstone. Topics without a decoder are absent.
        next_offsets: for each partition that moved, where reading goes on after this batch. Includes
            partitions whose records were all set aside: a batch may have offsets and no keys.
        size: bytes of keys, and of the values of topics with a decoder.
        newest: the newest record timestamp seen, in milliseconds since the epoch; 0 if unknown.
    """

    keys: dict[str, list[bytes]] = field(default_factory=dict)
    values: dict[str, list[object]] = field(default_factory=dict)
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    size: int = 0
    newest: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.keys.values()))

    def __bool__(self) -> bool:
        return bool(self.next_offsets)

    def counts(self) -> dict[str, int]:
        """Records per topic."""
        return {topic: len(keys) for topic, keys in self.keys.items()}
