"""Settings of a journal reader and writer, typed; any librdkafka key passes through ``kafka``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator


class OnProblem(StrEnum):
    """What to do about a gap or a reset topic, after it was logged and counted."""

    CONTINUE = "continue"
    STOP = "stop"


class OffsetReset(StrEnum):
    """Where to start on a partition nobody knows anything about."""

    EARLIEST = "earliest"
    LATEST = "latest"


class GroupProtocol(StrEnum):
    """How the members of the group agree on who reads what."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class BatchLimits(BaseModel):
    """A batch is closed by whichever limit comes first."""

    model_config = ConfigDict(extra="forbid")

    max_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Records per batch. Larger batches mean fewer writes to the store and more to read again after a crash."""

    max_bytes: Annotated[int, Field(ge=1_024)] = 16 * 1024 * 1024
    """Bytes of keys and decoded topics' values per batch."""

    max_seconds: Annotated[float, Field(gt=0, le=300)] = 1.0
    """Seconds a record waits at most for its batch to fill."""


class QuarantineSettings(BaseModel):
    """Where records that cannot be used are set aside. Without either they are only counted and logged."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = None
    """Kafka topic that receives the record with its reason and coordinates as headers."""

    file: Path | None = None
    """File that receives one JSON line per record: reason, coordinates, key and value in base64."""


class HttpSettings(BaseModel):
    """The worker's own HTTP port, with /livez, /readyz and /metrics."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port to listen on; 0 takes a free one; unset: no HTTP port."""


class JournalSettings(BaseModel):
    """Which topics to read, as whom, from where, and in what portions."""

    model_config = ConfigDict(extra="forbid")

    brokers: str = "127.0.0.1:9092"
    """Kafka bootstrap servers, comma separated (a list is understood)."""

    group_id: str = "counters"
    """Consumer group. Members of one group share the partitions; positions are kept per group."""

    group_instance_id: str | None = None
    """Static membership: a name of this member that survives restarts (a StatefulSet pod name)."""

    group_protocol: GroupProtocol = GroupProtocol.CLASSIC
    """``classic`` works everywhere; ``consumer`` is KIP-848 and needs Kafka 4."""

    prefix: str = "swh.journal.objects"
    """Topics are named ``<prefix>.<object type>``."""

    object_types: list[str] = []
    """Object types to read; empty: every topic below the prefix, also those created later."""

    auto_offset_reset: OffsetReset = OffsetReset.EARLIEST
    """Start of a partition that neither the view nor the group has a position for."""

    on_gap: OnProblem = OnProblem.CONTINUE
    """When records expired before they were read: go on at the oldest that is left, or stop."""

    on_reset: OnProblem = OnProblem.CONTINUE
    """When a topic is shorter than what was read of it (deleted and created anew): read it from its
    beginning, or stop."""

    batch: BatchLimits = BatchLimits()
    """When a batch is full."""

    quarantine: QuarantineSettings = QuarantineSettings()
    """Where records that cannot be used are set aside."""

    http: HttpSettings = HttpSettings()
    """Health and metrics of the worker."""

    stop_at_end: bool = False
    """Stop once everything is read that was there at the start."""

    stop_after: Annotated[int, Field(ge=1)] | None = None
    """Stop after about this many records (the batch in hand is finished)."""

    start_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds to wait for a broker at the start before giving up."""

    revoke_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that everything done while partitions are taken away may use together."""

    shutdown_timeout: Annotated[float, Field(gt=0)] = 20.0
    """Seconds from the first signal to a forced exit with code 1."""

    stall_after: Annotated[float, Field(gt=0)] = 300.0
    """Seconds without progress on a partition that has records waiting before the worker reports not ready."""

    kafka: dict[str, Any] = {}
    """Any librdkafka setting, as it is (``security.protocol``, ``sasl.password``, ``fetch.min.bytes`` …)."""

    @field_validator("brokers", mode="before")
    @classmethod
    def _join_brokers(cls, value: object) -> object:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
