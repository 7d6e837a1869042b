"""Every setting of the product, typed, with its documentation beside it.

One YAML file (``--config`` or ``COUNTERS_CONFIG``) and environment overrides ``COUNTERS_SECTION__KEY``.
``docs/configuration.md`` is generated from the docstrings below.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from journal_client.config import JournalSettings, TopicPart

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)
"""Unknown keys are errors, docstrings are the reference, wrong (secret?) values stay out of tracebacks."""

MIN_PRECISION, MAX_PRECISION = 14, 20


class Layout(StrEnum):
    """How counters are named in Redis."""

    NATIVE = "native"
    """``{<prefix>}:hll:<counter>:<generation>:<stratum>``, any precision."""

    LEGACY = "legacy"
    """The flat keys of swh-counters (``content``, ``revision``, …), precision 14."""


class OnVanished(StrEnum):
    """What to do when a counter's key disappeared (deleted, evicted) while the positions stayed."""

    REREAD = "reread"
    """Read the topics that feed the counter again from their beginning."""

    CONTINUE = "continue"
    """Count on from nothing; the loss is reported and stays."""


class RedisSettings(BaseModel):
    """The store of the counters."""

    model_config = _STRICT

    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``;
    plain ``host:port`` is understood."""

    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] = "counters"
    """First part of every key, written as the hash tag ``{counters}`` so that one atomic write also works
    on a Redis Cluster."""

    timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds to wait for an answer before the batch is kept and tried again."""


class ObjectsSettings(BaseModel):
    """What is counted and how exactly."""

    model_config = _STRICT

    precision: Annotated[int, Field(ge=MIN_PRECISION, le=MAX_PRECISION)] = 18
    """Index bits of a new counter: 14 has a standard error of 0.81 % in 12 KiB, 18 of 0.20 % in 192 KiB,
    20 of 0.10 % in 768 KiB. Existing counters keep theirs."""

    layout: Layout = Layout.NATIVE
    """``legacy`` adopts the flat keys of an existing swh-counters Redis as they are (precision 14)."""

    derived: dict[TopicPart, dict[TopicPart, list[str]]] = {
        "person": {
            "revision": ["author.fullname", "committer.fullname"],
            "release": ["author.fullname"],
        }
    }
    """Counters of values found inside messages: counter, then object type, then the paths of the fields.
    Absent and null parts are skipped."""

    on_vanished: OnVanished = OnVanished.REREAD
    """What to do when a counter's key disappeared from Redis: ``reread`` the topics that feed it from their
    beginning, or ``continue`` to count from nothing, which loses what was counted."""


class ApiSettings(BaseModel):
    """The HTTP server."""

    model_config = _STRICT

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 5011
    """Port to listen on."""


class Settings(BaseModel):
    """The sections of the settings file."""

    model_config = _STRICT

    journal: JournalSettings = JournalSettings()
    """Which topics to read, as whom, from where, and in what portions."""

    redis: RedisSettings = RedisSettings()
    """The store of the counters."""

    objects: ObjectsSettings = ObjectsSettings()
    """What is counted and how exactly."""

    api: ApiSettings = ApiSettings()
    """The HTTP server."""
