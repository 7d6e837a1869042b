"""Runs an application on a real socket for the length of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from counters.api.server import bind, make_server, url


@contextmanager
def running(app: ASGIApp) -> Iterator[str]:
    """The address of ``app`` on a free port of 127.0.0.1."""
    with bind("127.0.0.1", 0) as listener:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url(listener)
        finally:
            server.should_exit = True
            thread.join()
