"""Runs the application on a socket."""

from __future__ import annotations

import errno
import resource
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from counters.errors import InputError

DRAIN_SECONDS = 4
"""How long requests in flight may take after a signal; orchestrators kill after 30."""

BEFORE_DRAIN = "before_drain"
"""Key of the lifespan's state: functions to call after a signal, before requests in flight are waited for. An
endless answer would otherwise be waited for in full."""


def bind(host: str, port: int, section: str = "api", *, shared: bool = False) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: a free one), as the settings in ``section`` say;
    ``shared``: others of this user may as well.

    Bound before anything else starts, so that a port in use is one line and not a half-started process.

    Raises:
        InputError: the address is unknown, in use or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise InputError(f"cannot resolve {host}: {error.strerror}; set {section}.host") from error
    listener = socket.socket(family, kind, protocol)
    # A port whose last owner has only just ended is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
        # Two sockets may be bound with the option above, only one may listen.
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(_refused(host, port, section, error)) from error
    return listener


def url(listener: socket.socket) -> str:
    """Where a browser finds what ``listener`` is bound to."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for end in self.lifespan.state.get(BEFORE_DRAIN, ()):
            end()
        await super().shutdown(sockets)


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The server for ``app``; ``run(sockets=[...])`` it, end it by a signal or by ``should_exit = True``."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        loop="uvloop",
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    return _Server(config)


def run_until_signal(app: ASGIApp, listener: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests in flight and returns."""
    server = make_server(app)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # For as long as the server's own handlers are not there yet, and for after it has closed: it raises the
    # signal it ended on once more, but a clean end is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    _allow_many_files()
    with listener:
        server.run(sockets=[listener])


def _allow_many_files() -> None:
    """Every stream holds a connection open; the usual limit of 1,024 is for programs that use select."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _refused(host: str, port: int, section: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; set {section}.port or --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted; set {section}.port or --port to 1024 or more"
    return f"cannot listen on {host} port {port}: {error.strerror}; set {section}.host and {section}.port"
