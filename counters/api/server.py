"""Runs the application on a socket."""

from __future__ import annotations

import errno
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from counters.errors import InputError

DRAIN_SECONDS = 5
"""How long requests in flight may take after a signal; orchestrators kill after 30."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0: a free one), not yet listening.

    Bound before anything else starts, so that a port in use is one line and not a half-started process.

    Raises:
        InputError: the address is unknown, in use or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise InputError(f"cannot resolve {host}: {error.strerror}; set api.host") from error
    listener = socket.socket(family, kind, protocol)
    # A port whose last owner has only just ended is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Two sockets may be bound with the option above, only one may listen.
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(_refused(host, port, error)) from error
    return listener


def url(listener: socket.socket) -> str:
    """Where a browser finds what ``listener`` is bound to."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The server for ``app``; ``run(sockets=[...])`` it, end it by a signal or by ``should_exit = True``."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    return uvicorn.Server(config)


def run_until_signal(app: ASGIApp, listener: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests in flight and returns."""
    # The server raises the signal it ended on once more after it has closed; a clean end is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    with listener:
        make_server(app).run(sockets=[listener])


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _refused(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; set api.port or --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted; set api.port or --port to 1024 or more"
    return f"cannot listen on {host} port {port}: {error.strerror}; set api.host and api.port"
