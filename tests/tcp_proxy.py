"""A cable between a client and a server, which a test may cut at either end."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(slots=True)
class _Line:
    client: socket.socket
    server: socket.socket


class TcpProxy:
    """Listens on a free port of 127.0.0.1, and passes every byte on to ``port`` there."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._lines: list[_Line] = []
        self._connected = threading.Event()
        self._connected.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def cut_server_side(self) -> None:
        """The server sees its connections end; the client sees nothing, and new connections get no answer."""
        self._connected.clear()
        for line in self._lines:
            _end(line.server)

    def cut_client_side(self) -> None:
        """The client sees its connections end; the server sees nothing."""
        for line in self._lines:
            _end(line.client)

    def heal(self) -> None:
        """The client sees that its old connections ended, and may open new ones."""
        self.cut_client_side()
        self._connected.set()

    def close(self) -> None:
        """End everything at both ends."""
        _end(self._listener)
        self._connected.set()
        for line in self._lines:
            for end in (line.client, line.server):
                _end(end)
                end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connected.wait()
                line = _Line(client, socket.create_connection(self._target))
                self._lines.append(line)
                for source, sink in ((line.client, line.server), (line.server, line.client)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until the source ends. That end is not passed on: who cuts decides who sees it."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
