"""Which partitions are ours, where each starts, and which may flow.

A partition that was just assigned, or whose position turned out to be wrong, is *unsettled*: it is paused,
its records are dropped, and the loop settles it by asking the view where it stands, comparing that with what
the broker still has, and seeking there. Everything that changes where a partition is read goes through this
one door, so the rebalance callbacks never block, never fail and never decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from journal_client.batch import Partition
from journal_client.config import OffsetReset


class Origin(StrEnum):
    """Who said where to start."""

    VIEW = "view"
    COMMITTED = "committed"
    RESET = "reset"


class Problem(StrEnum):
    """What was wrong with a position."""

    GAP = "gap"
    RESET_TOPIC = "reset_topic"


@dataclass(frozen=True, slots=True)
class Watermarks:
    """What the broker has of a partition: offsets from ``low`` (inclusive) to ``high`` (exclusive)."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading of a partition starts, who said so, and what was wrong.

    ``wanted`` is the offset asked for; it differs from ``next_offset`` only if there is a ``problem``.
    """

    next_offset: int
    origin: Origin
    wanted: int
    problem: Problem | None = None


def choose_start(view: int | None, committed: int | None, marks: Watermarks, reset: OffsetReset) -> Start:
    """Where to start, in order of trust: the view, the group's commit, ``reset``.

    Args:
        view: the view's own next offset, None if it has never read the partition.
        committed: the group's committed offset, None if there is none or the view does not want it (it is
            only asked for when the view already holds data without a position).
        marks: what the broker has.
        reset: where to start when nobody knows.
    """
    if view is not None:
        wanted, origin = view, Origin.VIEW
    elif committed is not None:
        wanted, origin = committed, Origin.COMMITTED
    else:
        edge = marks.low if reset is OffsetReset.EARLIEST else marks.high
        return Start(edge, Origin.RESET, edge)
    if wanted < marks.low:
        return Start(marks.low, origin, wanted, Problem.GAP)
    if wanted > marks.high:
        return Start(marks.low, origin, wanted, Problem.RESET_TOPIC)
    return Start(wanted, origin, wanted)


ASK_THE_VIEW = None
"""The target of an unsettled partition whose position must be asked for."""


@dataclass(slots=True)
class Assignment:
    """The partitions of this member, as of the last rebalance callback.

    Attributes:
        number: grows with every change; a fetch during which it grew needs a look at every record.
        next_offsets: where reading goes on, for each settled partition.
        unsettled: the partitions that must not flow, with the offset to seek to, or ``ASK_THE_VIEW``.
        view: where the view was last known to stand, for partitions it has read. If it is found elsewhere,
            its store was restored or wiped.
        ends: for bounded reading, the high watermark of each partition when it was first seen.
        ever_assigned: the group has answered at least once (perhaps with no partition: a standby).
    """

    number: int = 0
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    unsettled: dict[Partition, int | None] = field(default_factory=dict)
    view: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    ever_assigned: bool = False

    @property
    def owned(self) -> set[Partition]:
        """Every partition that is ours, settled or not."""
        return self.next_offsets.keys() | self.unsettled.keys()

    def assigned(self, partitions: Iterable[Partition]) -> None:
        """The group gave us ``partitions``; none of them may flow yet."""
        self.number += 1
        self.ever_assigned = True
        for partition in partitions:
            self.next_offsets.pop(partition, None)
            self.unsettled[partition] = ASK_THE_VIEW

    def removed(self, partitions: Iterable[Partition]) -> None:
        """``partitions`` are not ours any more; nothing about them is remembered but their ends."""
        self.number += 1
        for partition in partitions:
            self.next_offsets.pop(partition, None)
            self.unsettled.pop(partition, None)
            self.view.pop(partition, None)

    def unsettle(self, partition: Partition, target: int | None) -> None:
        """Stop trusting the position of ``partition``; read on at ``target`` or wherever the view stands."""
        if partition in self.next_offsets or partition in self.unsettled:
            self.number += 1
            self.next_offsets.pop(partition, None)
            self.unsettled[partition] = target

    def settle(self, partition: Partition, next_offset: int) -> None:
        """``partition`` was sought to ``next_offset`` and may flow."""
        if partition in self.unsettled:
            del self.unsettled[partition]
            self.next_offsets[partition] = next_offset

    def view_stands(self, positions: Mapping[Partition, int | None]) -> None:
        """The view said, or was made to say, that it stands at ``positions``."""
        for partition, next_offset in positions.items():
            if next_offset is None:
                self.view.pop(partition, None)
            else:
                self.view[partition] = next_offset

    def at_end(self) -> bool:
        """Whether everything is read that was there when each partition was first seen."""
        return (
            self.ever_assigned
            and not self.unsettled
            and all(offset >= self.ends.get(partition, 0) for partition, offset in self.next_offsets.items())
        )
