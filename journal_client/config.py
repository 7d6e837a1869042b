"""Settings of a journal reader and writer, typed; any librdkafka key passes through ``kafka``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)
"""Unknown keys are errors, docstrings are the reference, wrong (secret?) values stay out of tracebacks."""

TopicPart = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
"""Characters that Kafka allows in the name of a topic."""

OWNED_BY_THE_LOOP = {
    "auto.offset.reset": "journal.auto_offset_reset",
    "bootstrap.servers": "journal.brokers",
    "metadata.broker.list": "journal.brokers",
    "group.id": "journal.group_id",
    "group.instance.id": "journal.group_instance_id",
    "group.protocol": "journal.group_protocol",
    "enable.auto.commit": None,
    "enable.auto.offset.store": None,
}
"""librdkafka keys that ``kafka`` must not hold, and the setting that takes their place."""

CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
"""librdkafka keys that a client of KIP-848 refuses: the broker decides."""


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

    model_config = _STRICT

    max_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Records per batch. Larger ones mean fewer writes to the store and more to read again after a crash."""

    max_bytes: Annotated[int, Field(ge=1_024)] = 16 * 1024 * 1024
    """Bytes of keys and decoded topics' values per batch."""

    max_seconds: Annotated[float, Field(gt=0, le=300)] = 1.0
    """Seconds a record waits at most for its batch to fill."""


class QuarantineSettings(BaseModel):
    """Where records that cannot be used are set aside. Without either they are only counted and logged."""

    model_config = _STRICT

    topic: TopicPart | None = None
    """Kafka topic that receives the record with its reason and coordinates as headers."""

    file: Path | None = None
    """File that receives one JSON line per record: reason, coordinates, key and value in base64."""


class HttpSettings(BaseModel):
    """The worker's own HTTP port, with /livez, /readyz and /metrics."""

    model_config = _STRICT

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port to listen on; 0 takes a free one; unset: no HTTP port."""


class JournalSettings(BaseModel):
    """Which topics to read, as whom, from where, and in what portions."""

    model_config = _STRICT

    brokers: Annotated[str, Field(min_length=1)] = "127.0.0.1:9092"
    """Kafka bootstrap servers, comma separated (a list is understood)."""

    group_id: Annotated[str, Field(min_length=1)] = "counters"
    """Consumer group. Members of one group share the partitions; positions are kept per group."""

    group_instance_id: str | None = None
    """Static membership: a name of this member that survives restarts (a StatefulSet pod name)."""

    group_protocol: GroupProtocol = GroupProtocol.CLASSIC
    """``classic`` works everywhere; ``consumer`` is KIP-848 and needs Kafka 4."""

    prefix: TopicPart = "swh.journal.objects"
    """Topics are named ``<prefix>.<object type>``."""

    object_types: list[TopicPart] = []
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
    """Seconds without progress on a partition with records waiting before the worker reports not ready."""

    kafka: Annotated[dict[str, Any], Field(repr=False)] = {}
    """Any librdkafka setting, as it is (``security.protocol``, ``sasl.password``, ``fetch.min.bytes`` …)."""

    @field_validator("brokers", mode="before")
    @classmethod
    def _join_brokers(cls, value: object) -> object:
        """One string without empty parts, so that nothing but commas is nothing."""
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError("must be a string or a list of strings")
        return ",".join(part.strip() for part in parts if part.strip())

    @field_validator("object_types", mode="before")
    @classmethod
    def _split_object_types(cls, value: object) -> object:
        """``content,revision`` is understood, for environment variables."""
        if not isinstance(value, str):
            return value
        return [part.strip() for part in value.split(",") if part.strip()]

    @model_validator(mode="after")
    def _quarantine_must_not_be_read(self) -> Self:
        topic = self.quarantine.topic
        if topic is not None and not self.object_types and topic.startswith(f"{self.prefix}."):
            raise ValueError(
                f"quarantine.topic {topic} is below journal.prefix and would be read itself; "
                "name it otherwise or list journal.object_types"
            )
        return self

    @model_validator(mode="after")
    def _kafka_must_not_contradict(self) -> Self:
        for key, instead in OWNED_BY_THE_LOOP.items():
            if key in self.kafka:
                advice = f"set {instead}" if instead else "positions are stored by the view"
                raise ValueError(f"kafka must not hold {key}; {advice}")
        if self.group_protocol is GroupProtocol.CONSUMER:
            for key in CLASSIC_ONLY:
                if key in self.kafka:
                    raise ValueError(
                        f"kafka must not hold {key} with group_protocol 'consumer': the broker decides; "
                        "remove it or set journal.group_protocol to 'classic'"
                    )
        return self
