"""Ending on time: a flag, a deadline, and what happens when the deadline passes."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


class Stop:
    """The wish to end, and the deadline for it.

    A signal handler must not raise (an exception inside ``consume()`` destroys the records it had fetched),
    so it only sets this flag. From the first request on a watchdog thread counts: closing a consumer can wait
    for ever on dead brokers, and a process that does not end is worse than one that is killed, since
    positions are stored with their effects.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._event = threading.Event()
        self._watchdog: threading.Timer | None = None

    def __bool__(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        """Ask the loop to end after the step it is in."""
        if not self._event.is_set():
            self._event.set()
            self._watchdog = threading.Timer(self._timeout, self._give_up)
            self._watchdog.daemon = True
            self._watchdog.start()

    def done(self) -> None:
        """Everything is closed; the watchdog may rest."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _give_up(self) -> None:
        sys.stderr.write(
            f"closing took longer than journal.shutdown_timeout ({self._timeout:g} s); ending anyway\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM request the end; a second one ends at once. Main thread only."""

        def handle(number: int, _frame: FrameType | None) -> None:
            if self:
                os._exit(128 + number)
            self.request()

        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
