"""What can go wrong while reading a journal, split once: recoverable or fatal.

Recoverable errors are handled by the loop (keep the batch, seek, poll on). Fatal ones end the process with
one line that states the fact, the value, the limit and the setting to change.
"""

from __future__ import annotations

from collections.abc import Mapping

from journal_client.batch import Partition


class JournalError(Exception):
    """Base of every error this package raises on purpose."""


class RecoverableError(JournalError):
    """The loop knows what to do; no operator is needed."""


class StalePosition(RecoverableError):
    """The view stands elsewhere than the reader believed: its store was restored, wiped, or has a new owner.

    ``positions`` holds, for every partition of the refused batch, the view's next offset, or None where the
    view has never read the partition. Nothing of the batch was written.
    """

    def __init__(self, positions: Mapping[Partition, int | None], reason: str = "stale") -> None:
        super().__init__(f"the view stands elsewhere ({reason}): {dict(positions)!r}")
        self.positions = dict(positions)
        self.reason = reason


class Unavailable(RecoverableError):
    """The view's store cannot take the batch now. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FatalError(JournalError):
    """The process must end; the message says what to change."""


class ConfigurationError(FatalError):
    """A setting is wrong or contradicts another."""


class BrokerUnreachable(FatalError):
    """No broker answered within the time allowed at start."""


class GapError(FatalError):
    """Records expired before they were read, and ``journal.on_gap`` is ``stop``."""


class ResetTopicError(FatalError):
    """A topic is shorter than what was read of it, and ``journal.on_reset`` is ``stop``."""


class FencedError(FatalError):
    """Two members share one ``group.instance.id``."""


class ShutdownTimeout(FatalError):
    """Closing took longer than ``journal.shutdown_timeout``."""


class DeliveryError(JournalError):
    """A record could not be written to the journal."""
