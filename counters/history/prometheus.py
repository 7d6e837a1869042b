"""Reads the history of the counts from Prometheus, or whatever has its API (Thanos, VictoriaMetrics, Mimir).

The standard library speaks HTTP here: a dozen requests in four hours need no pool, and a client that follows
no redirect cannot carry a password elsewhere.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any
from urllib.parse import urlencode

import msgspec

from counters.config import HistorySettings
from counters.errors import SettingsError, SourceError
from counters.history.series import Series, merge_all

POINTS_PER_QUERY = 10_000
"""Prometheus refuses a range of more than 11,000 points per series."""

MAX_ANSWER = 256 << 20
"""Bytes of one answer that are read; a hundred counters fill a tenth of it."""

_UNSET_START_YEARS = 10
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_CHUNK = 1 << 16


class _Line(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Line] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] = []


@dataclass(frozen=True, slots=True)
class Window:
    """One query: points at ``start``, ``start + step``, … ``end``, Unix seconds."""

    start: int
    end: int


def windows(start: int, end: int, step: int, limit: int = POINTS_PER_QUERY) -> Iterator[Window]:
    """Every multiple of ``step`` from ``start`` to ``end``, in windows of at most ``limit`` points.

    Multiples since the epoch, so that each rebuild finds the same points and one more from time to time.
    """
    first, last = -(-start // step) * step, end // step * step
    for begin in range(first, last + 1, limit * step):
        yield Window(begin, min(begin + (limit - 1) * step, last))


def query(metric: str, labels: Mapping[str, str], step: int) -> str:
    """The PromQL expression of the history.

    ``last_over_time`` looks a whole step back: the plain metric is looked for only in the five minutes before
    each point, and a scrape missed there would make a hole. ``max``, because every replica exports the same
    figure.
    """
    matchers = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"max by (object_type) (last_over_time({metric}{{{matchers}}}[{step}s]))"


class PrometheusSource:
    """The points of a Prometheus, from ``history.live_data_start`` on."""

    name = "prometheus"
    thins = False

    def __init__(self, settings: HistorySettings) -> None:
        """
        Raises:
            SettingsError: ``history.url`` is not set, or ``history.ca_file`` cannot be used.
        """
        if settings.url is None:
            raise SettingsError("history.url is not set; it names the Prometheus to read from")
        self._settings = settings
        self._url = f"{settings.url.rstrip('/')}/api/v1/query_range"
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=_tls(settings)), _NoRedirect
        )
        self._headers = {"accept": "application/json", **_authorization(settings)}

    def fetch(self, now: int) -> dict[str, Series]:
        """All points up to ``now`` (Unix seconds), by object type.

        Raises:
            SourceError: one of the queries failed, was answered in part only, or all found nothing. Then none
                of the answers may be used.
        """
        settings = self._settings
        deadline = time.monotonic() + settings.timeout
        expression = query(settings.metric, settings.labels, settings.step)
        parts = [
            self._ask(expression, window, deadline)
            for window in windows(_start(settings.live_data_start, now), now, settings.step)
        ]
        found = merge_all(*parts)
        if not found:
            raise SourceError(
                f"Prometheus has no point of {expression}; check history.metric and history.labels"
            )
        return found

    def _ask(self, expression: str, window: Window, deadline: float) -> dict[str, Series]:
        parameters = {
            "query": expression,
            "start": window.start,
            "end": window.end,
            "step": self._settings.step,
        }
        body = self._get(f"{self._url}?{urlencode(parameters)}", deadline)
        try:
            answer = msgspec.json.decode(body, type=_Answer)
            found = [_series(line) for line in (answer.data.result if answer.data else ())]
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"history.url does not answer like Prometheus: {error}; it ends before /api/v1"
            ) from error
        if answer.status != "success" or answer.data is None:
            raise SourceError(f"Prometheus reports: {_line(answer.error)}")
        if answer.warnings:
            raise SourceError(f"Prometheus warns that its answer is incomplete: {_line(answer.warnings[0])}")
        return merge_all(*found)

    def _get(self, url: str, deadline: float) -> bytes:
        # The scheme was checked with the settings.
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=_left(deadline)) as answer:
                return _read(answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise SourceError(_refusal(error, deadline)) from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise SourceError(self._failure(error)) from error

    def _failure(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            return (
                f"Prometheus did not answer within {self._settings.timeout:g} s; "
                "raise history.timeout or move history.live_data_start forward"
            )
        if isinstance(reason, http.client.IncompleteRead):
            return "the answer of Prometheus ends too early; check history.url"
        text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
        setting = "history.ca_file" if isinstance(reason, ssl.SSLError) else "history.url"
        return f"Prometheus does not answer: {_line(text)}; check {setting}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to be reported: followed, they would take the password along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _tls(settings: HistorySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # also what ssl raises for a file without a certificate
        raise SettingsError(
            f"history.ca_file {settings.ca_file} cannot be used: {error.strerror or error}"
        ) from error
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _authorization(settings: HistorySettings) -> dict[str, str]:
    if settings.bearer_token is not None:
        return {"authorization": f"Bearer {settings.bearer_token.get_secret_value()}"}
    if settings.username is not None:
        password = "" if settings.password is None else settings.password.get_secret_value()
        pair = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
        return {"authorization": f"Basic {pair}"}
    return {}


def _start(given: datetime | None, now: int) -> int:
    if given is None:
        return now - _UNSET_START_YEARS * 365 * 86_400
    return int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read(answer: IO[bytes], deadline: float, limit: int = MAX_ANSWER) -> bytes:
    """The body, however slowly it drips, within the deadline and the limit."""
    body = bytearray()
    # One call of the socket at a time: the timeout given to the connection holds for each, not for all.
    read = answer.read1 if isinstance(answer, http.client.HTTPResponse) else answer.read
    while chunk := read(_CHUNK):
        body += chunk
        _left(deadline)
        if len(body) > limit:
            raise SourceError(f"the answer of Prometheus is above {limit >> 20} MiB; raise history.step")
    if isinstance(answer, http.client.HTTPResponse) and answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return bytes(body)


def _refusal(error: urllib.error.HTTPError, deadline: float) -> str:
    """What an answer other than 2xx means, with Prometheus's own words where there are any."""
    answered = f"Prometheus answers {error.code} {error.reason}".rstrip()
    if error.code in (401, 403):
        return f"{answered}; check history.username and history.password, or history.bearer_token"
    if 300 <= error.code < 400:
        return f"{answered}; set history.url to where it redirects to"
    try:
        said = msgspec.json.decode(_read(error, deadline, 1 << 20), type=_Answer).error
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, http.client.HTTPException, SourceError):
        said = ""
    return f"{answered}: {_line(said)}" if said else f"{answered}; check history.url"


def _series(line: _Line) -> dict[str, Series]:
    """One line of the answer; what carries no type is none of ours."""
    name = line.metric.get("object_type")
    if not name:
        return {}
    return {name: Series.of([(int(at), float(value)) for at, value in line.values])}


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
