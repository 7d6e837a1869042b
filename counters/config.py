"""Every setting of the product, typed, with its documentation beside it.

One YAML file (``--config`` or ``COUNTERS_CONFIG``) and environment overrides ``COUNTERS_SECTION__KEY``.
``docs/configuration.md`` is generated from the docstrings below.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from journal_client.config import JournalSettings, TopicPart

_STRICT = ConfigDict(
    extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, allow_inf_nan=False
)
"""Unknown keys are errors, docstrings are the reference, wrong (secret?) values stay out of tracebacks, and
no time is infinite."""

_YEAR = 366 * 86_400

Seconds = Annotated[float, Field(gt=0, le=_YEAR)]
"""A time to wait; the limit is far below what a system's clock can be asked to wait for."""


def _is_token(token: SecretStr) -> SecretStr:
    """What a header can carry as it is; others would be cut, refused or read in another encoding."""
    text = token.get_secret_value()
    if text != text.strip() or not all(" " <= one <= "~" for one in text):
        raise ValueError(
            "holds what no HTTP header can carry; use printable ASCII without a space at its ends"
        )
    return token


Token = Annotated[SecretStr, AfterValidator(_is_token)]
"""A secret that travels in a header."""

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

    timeout: Seconds = 10.0
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
    Absent and null parts are skipped. All workers of a group must have the same: the one that starts last
    decides, the others stand still until they are restarted. After a change the topics are read again from
    their beginning."""

    on_vanished: OnVanished = OnVanished.REREAD
    """What to do when a counter's key disappeared from Redis: ``reread`` the topics that feed it from their
    beginning, or ``continue`` to count from nothing, which loses what was counted."""


class Access(StrEnum):
    """Who may call an endpoint that changes something."""

    OFF = "off"
    """Nobody."""

    TOKEN = "token"  # noqa: S105
    """Who sends ``api.token``."""

    OPEN = "open"
    """Everybody who reaches the port."""


def _off(value: object) -> object:
    """In YAML, a plain ``off`` is the boolean false."""
    return "off" if value is False else value


class LegacyApiSettings(BaseModel):
    """The endpoints of swh-counters, for its clients. Those that only read are always there."""

    model_config = _STRICT

    add: Annotated[Access, BeforeValidator(_off)] = Access.OFF
    """Who may add keys with ``POST /add``: ``off``, ``token`` (who sends ``api.token``), or ``open``.
    Such keys are in no journal: what Redis loses of them comes back only if their sender repeats them."""

    refresh_history: Annotated[Access, BeforeValidator(_off)] = Access.OFF
    """Who may have the history rebuilt with ``POST /refresh_history``: ``off``, ``token``, or ``open``.
    It is rebuilt periodically without."""

    history_files: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]] = ["history.json"]
    """Names under which ``/counters_history/<file>`` and ``/history`` answer with the shared history.
    They are names only: no file is read."""

    history_types: list[TopicPart] = ["content", "origin", "revision"]
    """The series in that history; empty: all there are. swh-web puts all of it into its home page."""

    max_body: Annotated[int, Field(gt=0)] = 32 * 1024 * 1024
    """Bytes a request to ``/add`` may have. A journal client of swh-counters sends the values as well."""


class ApiSettings(BaseModel):
    """The HTTP server."""

    model_config = _STRICT

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 5011
    """Port to listen on."""

    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Serving processes on that port, about one per core. Each reads the counts once per second, whatever the
    number of its clients. With several, scrape ``counters exporter``: ``/metrics`` is that of one of them."""

    token: Token | None = None
    """Secret of clients that may change something: ``Authorization: Bearer <token>``, or as the password
    of ``Basic``."""

    legacy: LegacyApiSettings = LegacyApiSettings()
    """The endpoints of swh-counters, for its clients."""

    @model_validator(mode="after")
    def _token_is_there(self) -> Self:
        token = self.token.get_secret_value() if self.token is not None else ""
        for name in ("add", "refresh_history"):
            if getattr(self.legacy, name) is Access.TOKEN and not token:
                raise ValueError(f"legacy.{name} is 'token', but no token is set; set api.token")
        return self


class HistorySettings(BaseModel):
    """How the counts became what they are: from Prometheus, or from samples the server takes itself."""

    model_config = _STRICT

    url: str | None = None
    """Base URL of Prometheus, or of Thanos, VictoriaMetrics or Mimir: what comes before ``/api/v1``. Unset:
    the server takes samples itself. The environment's ``HTTPS_PROXY`` and ``NO_PROXY`` apply."""

    username: str | None = None
    """User of Prometheus, for basic authentication."""

    password: SecretStr | None = None
    """Password of that user."""

    bearer_token: Token | None = None
    """Token for Prometheus, instead of user and password."""

    ca_file: Path | None = None
    """Certificates (PEM) of those who may vouch for Prometheus; unset: those of the system."""

    verify: bool = True
    """Whether the certificate of Prometheus is checked at all."""

    timeout: Seconds = 120.0
    """Seconds for Prometheus to answer everything that one refresh asks."""

    metric: Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")] = "counters_objects"
    """The metric that holds the counts, by label ``object_type``; of an old server
    ``swh_archive_object_total``."""

    labels: dict[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")], str] = {}
    """Labels that its series must have, with their values, such as ``environment: production``."""

    live_data_start: datetime | None = None
    """From when on Prometheus is asked: a date (UTC unless it says otherwise) or Unix seconds. Unset: ten
    years back. What was published from before stays in the history."""

    step: Annotated[int, Field(gt=0, le=_YEAR)] = 43_200
    """Seconds between two points that Prometheus is asked for."""

    refresh_every: Seconds | None = None
    """Seconds between two refreshes. Unset: four hours from Prometheus, five minutes from own samples."""

    sample_every: Annotated[float, Field(ge=1, le=_YEAR)] = 60.0
    """Seconds between two samples; they are thinned to one a minute after an hour, one an hour after a day,
    and two a day after 90 days."""

    static_files: list[Path] = []
    """Files with older history, as swh-counters writes them (``history.json``), to merge in below all else;
    of several the later one wins."""

    export_file: Path | None = None
    """File of that kind to write after each refresh, by whoever does it."""

    @field_validator("url")
    @classmethod
    def _is_base_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable or parts.query or parts.fragment:
            raise ValueError("should be like http://prometheus:9090, or longer up to what precedes /api/v1")
        if "@" in parts.netloc:
            raise ValueError("holds a user; set history.username and history.password instead")
        return url

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.bearer_token is not None and (self.username is not None or self.password is not None):
            raise ValueError("bearer_token contradicts username and password; set one of them")
        if self.password is not None and self.username is None:
            raise ValueError("password has no username; set both")
        return self


class ExporterSettings(BaseModel):
    """The metrics of the counts, for Prometheus: ``counters exporter`` reads Redis when it is scraped."""

    model_config = _STRICT

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 9108
    """Port to listen on."""

    deadline: Seconds = 5.0
    """Seconds after which a scrape is answered without the counts. Keep it below the ``scrape_timeout`` of
    Prometheus (10 s), which would otherwise see nothing at all."""

    legacy_family: bool = False
    """Publish ``swh_archive_object_total``, the family of swh-counters, as well, here and in ``/metrics`` of
    the API. Without it, ``/metrics?legacy=1`` asks for it."""


class SqlSettings(BaseModel):
    """The database of views that keep their state in SQL. The checkpoints of their tasks are there, too."""

    model_config = _STRICT

    url: SecretStr | None = None
    """``sqlite:////var/lib/counters/state.db`` or ``postgresql://user:password@host/database``; unset: there
    is none. Needs ``pip install 'counters[sql]'``, and ``counters checkpoints create-tables`` once."""

    timeout: Seconds = 10.0
    """Seconds to wait for a connection, or for another writer."""


class RetentionSettings(BaseModel):
    """How long is kept what makes a retry harmless, and what says that a task is finished."""

    model_config = _STRICT

    receipts_days: Annotated[float, Field(ge=1, le=3650)] = 30
    """Days for which receipts of retried records and rows of finished tasks are kept, for ``counters
    checkpoints prune``. Receipts stay longer while a node may still retry a batch from before, and as long as
    the quarantine holds their records."""


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

    history: HistorySettings = HistorySettings()
    """How the counts became what they are: from Prometheus, or from samples the server takes itself."""

    exporter: ExporterSettings = ExporterSettings()
    """The metrics of the counts, for Prometheus."""

    sql: SqlSettings = SqlSettings()
    """The database of views that keep their state in SQL. The checkpoints of their tasks are there, too."""

    retention: RetentionSettings = RetentionSettings()
    """How long is kept what makes a retry harmless, and what says that a task is finished."""
