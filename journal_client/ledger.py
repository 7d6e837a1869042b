"""The books of one reader: every record polled is accounted for, once.

For each topic, at any moment between two steps of the loop::

    polled == handled + skipped{reason} + dropped{reason} + held in the open batch

*Skipped* records were set aside for good (no key, undecodable value). *Dropped* ones will be read again, by
this member or by another: their partition was lost, or the view turned out to stand elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Skip(StrEnum):
    """Why a record was set aside."""

    NULL_KEY = "null_key"
    UNDECODABLE = "undecodable_value"


class Drop(StrEnum):
    """Why a record was put back, to be read again."""

    REVOKED = "revoked"
    LOST = "lost"
    STALE = "stale"
    UNSETTLED = "unsettled"
    NOT_OURS = "not_ours"
    UNAVAILABLE = "unavailable"


@dataclass(slots=True)
class Ledger:
    """Counts of records, per topic and reason."""

    polled: Counter[str] = field(default_factory=Counter)
    handled: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, Skip]] = field(default_factory=Counter)
    dropped: Counter[tuple[str, Drop]] = field(default_factory=Counter)

    def open(self, topic: str) -> int:
        """Records of ``topic`` polled and not yet accounted for: those in the open batch."""
        return (
            self.polled[topic]
            - self.handled[topic]
            - sum(n for (t, _), n in self.skipped.items() if t == topic)
            - sum(n for (t, _), n in self.dropped.items() if t == topic)
        )

    def imbalance(self, held: Mapping[str, int]) -> dict[str, int]:
        """Topics whose books do not add up given what the open batch holds, with the difference."""
        differences = {topic: self.open(topic) - held.get(topic, 0) for topic in self.polled}
        return {topic: n for topic, n in differences.items() if n}

    def summary(self) -> dict[str, dict[str, int]]:
        """Per topic: polled, handled, ``skipped.<reason>``, ``dropped.<reason>``; for logs and tests."""
        return {topic: dict(self._of(topic)) for topic in sorted(self.polled)}

    def _of(self, topic: str) -> Iterator[tuple[str, int]]:
        yield "polled", self.polled[topic]
        yield "handled", self.handled[topic]
        yield from ((f"skipped.{reason}", n) for (t, reason), n in sorted(self.skipped.items()) if t == topic)
        yield from ((f"dropped.{reason}", n) for (t, reason), n in sorted(self.dropped.items()) if t == topic)
