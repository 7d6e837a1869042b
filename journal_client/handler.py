"""The whole contract between Kafka and a view of the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Protocol

from journal_client.batch import Batch, Partition

Decoder = Callable[[bytes], object]


class Effect(Enum):
    """What reading a record twice does to the view."""

    IDEMPOTENT = "idempotent"
    """Nothing: adding a key to a sketch, merging a maximum."""

    POSITIONAL = "positional"
    """It would count twice; right only because check, effect and advance are one step."""


class BatchHandler(Protocol):
    """A view of the journal that knows exactly how far it has read.

    The position is stored in the same atomic write as the effect, in the store that holds the effect. The
    loop calls every method from one thread.
    """

    effect: Effect

    def decoder(self, topic: str) -> Decoder | None:
        """How to decode a value of ``topic``; None if this view needs only the keys.

        The decoder may raise anything on a value it cannot decode: that record is set aside with its
        coordinates. It is never called for a tombstone.
        """

    def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int | None]:
        """Where the view stands: the next offset to read per partition, None where it has never read.

        Raises:
            Unavailable: the store does not answer.
        """

    def holds_data(self, topic: str) -> bool:
        """Whether the view already holds data of ``topic`` although it has no position for it (an adopted
        store).

        Then reading starts at the group's committed offset instead of ``auto_offset_reset``.

        Raises:
            Unavailable: the store does not answer.
        """

    def handle(self, batch: Batch) -> None:
        """Make the effects of ``batch`` and its ``next_offsets`` durable in one atomic write.

        Called again with the same, unchanged batch after ``Unavailable``; a write that had been applied after
        all must then be recognised and not repeated.

        Raises:
            StalePosition: the view stands elsewhere; nothing was written.
            Unavailable: the store is down, full or read-only; the batch is kept and tried again.
        """
