"""Is the reader alive, is it ready, and if not, why: as data, and over HTTP."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from journal_client.batch import Partition
from journal_client.config import HttpSettings
from journal_client.errors import ConfigurationError

logger = logging.getLogger(__name__)

LOOP_DEADLINE = 120.0
"""Seconds without a turn of the loop after which the process is reported dead. Above the longest single wait
of the loop (the store's timeout), below librdkafka's ``max.poll.interval.ms`` of 300 s."""


@dataclass(slots=True)
class Stalls:
    """Which partitions have records waiting and do not move."""

    after: float
    _waiting: dict[Partition, tuple[int, float]] = field(default_factory=dict)
    """Partitions with records waiting: the offset they wait at, and since when."""

    def observe(self, positions: Mapping[Partition, tuple[int, int]], now: float) -> list[Partition]:
        """Partitions stalled at ``now``; those not among ``positions`` are forgotten.

        Args:
            positions: for each partition its next offset and its high watermark.
            now: monotonic seconds.
        """
        before = self._waiting
        self._waiting = {
            partition: before[partition]
            if partition in before and before[partition][0] == next_offset
            else (next_offset, now)
            for partition, (next_offset, high) in positions.items()
            if high > next_offset
        }
        return sorted(p for p, (_, since) in self._waiting.items() if now - since > self.after)


@dataclass(slots=True)
class Health:
    """What the loop knows about itself. Written by the loop, read by the HTTP thread."""

    clock: Callable[[], float] = time.monotonic
    turned_at: float = field(default_factory=time.monotonic)
    started: bool = False
    store_problem: str | None = None
    settling_problem: str | None = None
    brokers_down: bool = False
    stalled: list[Partition] = field(default_factory=list)

    def turn(self) -> None:
        """The loop went round once more."""
        self.turned_at = self.clock()

    def why_not_alive(self) -> list[str]:
        """Reasons to restart the process; empty if it is alive."""
        age = self.clock() - self.turned_at
        return [f"the loop has not turned for {age:.0f} s"] if age > LOOP_DEADLINE else []

    def why_not_ready(self) -> list[str]:
        """Reasons why nothing is being read; empty if all is well. A member without partitions is well."""
        reasons = self.why_not_alive()
        if not self.started:
            reasons.append("not subscribed yet")
        if self.store_problem is not None:
            reasons.append(f"the store takes no batches: {self.store_problem}")
        if self.settling_problem is not None:
            reasons.append(f"partitions cannot start: {self.settling_problem}")
        if self.brokers_down:
            reasons.append("no Kafka broker answers")
        reasons += [f"{partition} has records waiting and does not move" for partition in self.stalled]
        return reasons


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # the parent's name
        logger.debug(format, *args)


class HealthServer:
    """/livez, /readyz (200 or 503, reasons as JSON) and /metrics on a port of their own."""

    def __init__(self, settings: HttpSettings, health: Health, registry: CollectorRegistry) -> None:
        self._health = health
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = make_server(
                settings.host,
                settings.port or 0,
                self._answer,
                server_class=_Server,
                handler_class=_QuietHandler,
            )
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; change journal.http"
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "").rstrip("/")
        if path == "/metrics":
            return self._metrics(environ, start_response)  # type: ignore[no-any-return]
        checks = {
            "/livez": self._health.why_not_alive,
            "/healthz": self._health.why_not_alive,
            "/readyz": self._health.why_not_ready,
        }
        if path not in checks:
            start_response("404 Not Found", [("Content-Type", "application/json")])
            return [b'{"reasons": ["see /livez, /readyz, /metrics"]}']
        reasons = checks[path]()
        status = "503 Service Unavailable" if reasons else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps({"ok": not reasons, "reasons": reasons}).encode()]

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
