"""What every store of checkpoints does, whatever holds it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import ABSENT, Absent, Advance, Checkpoint, Counts, Cursor, Fence


class Checkpoints(Protocol):
    """Checkpoints and claims in one store: the store that holds the work they describe.

    A store without a place for checkpoints (a database without the table) has none: reading finds nothing,
    every write raises. A store that does not answer is something else: everything raises.

    Every method takes only names of the form ``<operation>:<scope>`` (InputError), and raises
    :class:`~counters.errors.StoreUnavailable` when the store does not answer and
    :class:`~counters.errors.StoreError` when it holds something else. A ``fence`` refuses the write with
    :class:`~counters.checkpoints.model.ClaimLost` unless its claim is still held.
    """

    def get(self, name: str) -> Checkpoint | None:
        """The row, or None."""

    def list(self) -> list[Checkpoint]:
        """Every row, ordered by name."""

    def put(
        self, name: str, cursor: Cursor | None, counts: Counts, state: str, *, fence: Fence | None = None
    ) -> None:
        """Write all three, creating the row where there is none. No ``state`` but "paused" touches what the
        operator wants."""

    def advance(
        self,
        name: str,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Write cursor, counts or both and never the state; a new row is "idle".

        Raises:
            InputError: neither is given.
        """

    def apply(self, advance: Advance) -> None:
        """Write progress and its heartbeat, on conditions, in one step.

        Raises:
            CursorMoved: the cursor is not the expected one.
        """

    def update(
        self,
        name: str,
        *,
        cursor: Cursor | Absent | None = ABSENT,
        counts: Counts | Absent = ABSENT,
        state: str | Absent = ABSENT,
        fence: Fence | None = None,
    ) -> None:
        """Write the given fields of an existing row.

        Raises:
            NotFound: there is no row; it is not created.
        """

    def heartbeat(self, name: str, runner: str | None = None, *, fence: Fence | None = None) -> None:
        """Report ``runner`` (default: this process) to be running now, by the store's clock.

        Cursor and counts stay. Belongs into the write that commits a batch, so that it is never fresher than
        the work: :meth:`apply` does that.

        Raises:
            NotFound: there is no row.
        """

    def delete(self, name: str) -> bool:
        """Remove the row; whether there was one."""

    def pause(self, name: str) -> None:
        """Ask the task to stop at its next batch, also if it never ran. Cursor and counts stay."""

    def resume(self, name: str) -> None:
        """Let the task run again from its checkpoint; it is "idle" until it does."""

    def paused(self, name: str) -> bool:
        """Whether the operator wants it paused; False where there is no row."""

    def claim(self, name: str, runner: str | None = None) -> Claim:
        """Take the claim on ``name``, at once or not at all; not re-entrant.

        Raises:
            AlreadyRunning: somebody holds it, this process perhaps; names the holder.
        """

    def holder(self, name: str) -> str | None:
        """Who holds the claim on ``name``; None: nobody."""

    def now(self) -> datetime:
        """The store's clock (UTC)."""
