"""Several serving processes on one port, none of which outlives the first.

The first process makes one listening socket per process and serves nothing itself. The kernel spreads
connections over the sockets. A process that dies is replaced, and takes over its socket with the connections
that wait in it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from types import FrameType

from counters.api.server import DRAIN_SECONDS, bind
from counters.errors import CountersError

logger = logging.getLogger(__name__)

BAD_INPUT = 2
LOOK_SECONDS = 0.2
RESTART_SECONDS = 1.0
"""Between two starts of one process, so that a defect does not become a fork bomb."""

GRACE_SECONDS = DRAIN_SECONDS + 4
"""Between SIGTERM and SIGKILL for a process that does not end."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Work = Callable[[socket.socket], None]


def listen(host: str, port: int, number: int) -> list[socket.socket]:
    """``number`` sockets that listen on the same address.

    Raises:
        InputError: the address is unknown, in use or not permitted.
    """
    first = bind(host, port)
    if number == 1:
        return [first]
    # The kernel would also let another server join in on the port; that it is free was found out before.
    port = first.getsockname()[1]
    first.close()
    return [bind(host, port, shared=True) for _ in range(number)]


class Processes:
    """Runs ``work`` in one process per listener until a signal comes."""

    def __init__(self, listeners: Sequence[socket.socket], work: Work) -> None:
        self._listeners = list(listeners)
        self._work = work
        self._running: dict[int, ForkProcess] = {}
        self._started = [0.0] * len(self._listeners)
        self._stopping = False

    def run(self) -> int:
        """Start them, replace those that die, end them after SIGTERM or SIGINT; the exit code."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        code = 0
        try:
            while not self._stopping and code == 0:
                self._fill()
                wait([process.sentinel for process in self._running.values()], LOOK_SECONDS)
                code = self._bury()
        finally:
            self._end()
        return code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _fill(self) -> None:
        now = time.monotonic()
        for place in range(len(self._listeners)):
            if place not in self._running and now - self._started[place] >= RESTART_SECONDS:
                self._started[place] = now
                self._running[place] = self._launch(place)

    def _launch(self, place: int) -> ForkProcess:
        process = multiprocessing.get_context("fork").Process(target=self._child, args=[place])
        # A signal between the fork and the child's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return process

    def _child(self, place: int) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=_end_with_parent, name="leash", daemon=True).start()
        for other, listener in enumerate(self._listeners):
            if other != place:
                listener.close()
        try:
            self._work(self._listeners[place])
        except CountersError as error:
            print(f"counters: {error}", file=sys.stderr)
            sys.exit(BAD_INPUT)

    def _bury(self) -> int:
        """Forget those that ended; not 0 if one refuses its settings: so would the next."""
        for place, process in list(self._running.items()):
            if process.exitcode is not None:
                del self._running[place]
                if process.exitcode == BAD_INPUT:
                    return BAD_INPUT
                if not self._stopping:
                    logger.error("serving process %d ended (%s)", process.pid, process.exitcode)
        return 0

    def _end(self) -> None:
        # Before the others: whoever connects now is refused, and may go elsewhere.
        for listener in self._listeners:
            listener.close()
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._running.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                logger.error("serving process %d does not end and is killed", process.pid)
                process.kill()
                process.join()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
