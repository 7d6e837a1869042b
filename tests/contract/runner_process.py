"""Processes that take claims when they are told to, and may be killed with them.

They are forked from one that has imported everything: six of them start in the time of one.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from checkpoint_stores import open_store

from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning

PRELOADED = ["pytest", "counters.checkpoints.redis_store", "counters.checkpoints.sql_store", "psycopg"]


class Runner:
    """Another process, at the store of ``url``."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_obey, args=(url, far), daemon=True)
        self._process.start()
        far.close()
        assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, *command: str) -> None:
        """Tell it to do something, and do not wait: ``claim NAME`` or ``release``."""
        self._pipe.send(command)

    def answer(self) -> str:
        """What it says next: ``claimed``, ``refused`` or ``released``."""
        assert self._pipe.poll(30), "no answer"
        return str(self._pipe.recv())

    def ask(self, *command: str) -> str:
        """Tell it to do something, and wait for the answer."""
        self.send(*command)
        return self.answer()

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.kill()
        self._pipe.close()


def _obey(url: str, pipe: Connection) -> None:
    store = open_store(url)
    claim: Claim | None = None
    pipe.send("ready")
    while True:
        match pipe.recv():
            case ("claim", name):
                try:
                    claim = store.claim(name)
                except AlreadyRunning:
                    pipe.send("refused")
                else:
                    pipe.send("claimed")
            case ("release",):
                assert claim is not None
                claim.release()
                pipe.send("released")
