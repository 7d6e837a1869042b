"""A small HTTP server in the place of Prometheus, for the answers a real one gives only in trouble."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Standin:
    """A server in the place of Prometheus that misbehaves as told; ``url`` is where it is.

    Attributes:
        points: what it knows: Unix seconds and value as text, by object type.
        status, headers, body: what it answers instead of a result; a body of bytes is sent as it is.
        warnings: what it adds to a result.
        pause: called before it answers.
        asked: the query and headers of every request.
    """

    points: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    warnings: list[str] = field(default_factory=list)
    pause: Callable[[], object] = field(default=lambda: None)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, target: str) -> bytes:
        parameters = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        self.asked.append({"path": urlsplit(target).path, **parameters})
        self.pause()
        if self.body is not None:
            return self.body
        start, end = int(parameters["start"]), int(parameters["end"])
        result = [
            {
                "metric": {"object_type": name},
                "values": [[at, value] for at, value in points if start <= at <= end],
            }
            for name, points in self.points.items()
        ]
        content: dict[str, Any] = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return json.dumps(content | ({"warnings": self.warnings} if self.warnings else {})).encode()


@contextmanager
def standing_in(state: Standin, context: ssl.SSLContext | None = None) -> Iterator[Standin]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = state.answer(self.path)
            state.asked[-1]["authorization"] = self.headers.get("authorization", "")
            self.send_response(state.status)
            for name, value in {"content-length": str(len(body)), **state.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # whoever asked may have given up
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
