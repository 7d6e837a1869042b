"""What the API says about counts, and the bytes in which it says it."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime

import msgspec
from fastapi import HTTPException, Request, Response

from counters.api.latest import View
from counters.objects.spec import Count

WORTH_PACKING = 1024
"""Bytes below which compression saves no packet."""


@dataclass(frozen=True, slots=True)
class CountBody:
    """One counter. ``lower`` and ``upper`` are two standard errors away (about 95 % confidence).

    ``value``, its error and its bounds are null where the counter could not be read; ``reason`` says why.
    """

    value: int | None
    standard_error: float | None
    lower: int | None
    upper: int | None
    updated_at: datetime | None
    as_of: datetime
    suspect: bool
    messages: int | None
    reason: str | None

    @classmethod
    def of(cls, count: Count) -> CountBody:
        """The public form of ``count``."""
        return cls(
            value=count.value,
            standard_error=None if count.value is None else count.standard_error,
            lower=count.lower,
            upper=count.upper,
            updated_at=count.updated_at,
            as_of=count.as_of,
            suspect=count.suspect,
            messages=count.messages,
            reason=count.reason,
        )


@dataclass(frozen=True, slots=True)
class SingleCountBody(CountBody):
    """One counter that was asked for alone. ``age_seconds`` and ``stale`` are those of the read."""

    age_seconds: int
    stale: bool

    @classmethod
    def within(cls, view: View, count: Count) -> SingleCountBody:
        """The public form of ``count``, which is one of ``view``."""
        body = CountBody.of(count)
        shared = {field.name: getattr(body, field.name) for field in fields(body)}
        return cls(**shared, age_seconds=int(view.age), stale=view.stale)


@dataclass(frozen=True, slots=True)
class CountsBody:
    """All counters by name. ``age_seconds`` is the time since the read; ``stale``: it should be less."""

    as_of: datetime
    age_seconds: int
    stale: bool
    counts: dict[str, CountBody]


def counts_tag(counts: Iterable[Count], stale: bool) -> str:
    """What tells answers about these counts from others. Moments of reading pass without anything having
    happened, so they are not in it, and every replica gives the same."""
    shown = [
        (one.name, one.value, one.standard_error, one.messages, one.updated_at, one.suspect, one.reason)
        for one in counts
    ]
    return f'W/"{hashlib.blake2b(msgspec.json.encode([stale, shown]), digest_size=12).hexdigest()}"'


def known(view: View) -> tuple[dict[str, Count], datetime]:
    """The last counts and when they were read.

    Raises:
        HTTPException: 503, there are none yet.
    """
    if view.counts is None or view.as_of is None:
        # Why is for operators: it may name addresses of the store.
        raise HTTPException(503, "the counts could not be read yet; /readyz says why", {"retry-after": "1"})
    return view.counts, view.as_of


def no_counter(name: str) -> HTTPException:
    """The answer about a counter that does not exist."""
    return HTTPException(404, f"there is no counter {name!r:.200}; /api/v1/counts lists them")


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes made once and sent often, with a tag that tells them from others.

    Attributes:
        packed: the same compressed; None where that is not worth it.
        etag: weak, since it is the same for both.
    """

    content: bytes
    packed: bytes | None
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str, *, effort: int = 1, etag: str | None = None) -> Body:
        """``content``, compressed as well where that is worth it. The tag follows from the bytes alone unless
        it is given, so that every replica gives the same.

        ``effort`` 1 packs numbers nearly as small as 9 in a tenth of the time; 9 is for what is packed once.
        """
        packed = gzip.compress(content, effort, mtime=0) if len(content) >= WORTH_PACKING else None
        etag = etag or f'W/"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        return cls(content, packed, media_type, etag)

    def answer(self, request: Request, cache_control: str) -> Response:
        """The response to ``request``: 304 if the client has these bytes, compressed if it takes that."""
        headers = {"cache-control": cache_control, "etag": self.etag, "vary": "accept-encoding"}
        if tagged(request.headers.get("if-none-match", ""), self.etag):
            return Response(status_code=304, headers=headers)
        content = self.content
        if self.packed is not None and takes_gzip(request.headers.get("accept-encoding", "")):
            content = self.packed
            headers["content-encoding"] = "gzip"
        return Response(content, headers=headers, media_type=self.media_type)


def tagged(if_none_match: str, etag: str) -> bool:
    """Whether ``If-None-Match`` names ``etag``, by the weak comparison of RFC 9110."""
    if not if_none_match:
        return False
    wanted = etag.removeprefix("W/")
    return any(
        tag == "*" or tag.removeprefix("W/") == wanted for tag in map(str.strip, if_none_match.split(","))
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Whether ``Accept-Encoding`` allows gzip by name."""
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
