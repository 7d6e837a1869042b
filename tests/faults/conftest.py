"""Workers that may be killed, the journal they read, and the truth they must find in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from records import PRECISION, Records
from workers import StartWorker, Worker

from journal_client.config import CLASSIC_ONLY, BatchLimits, GroupProtocol, JournalSettings
from journal_client.writer import JournalWriter


@pytest.fixture
def settings(journal_settings: JournalSettings) -> JournalSettings:
    """Small batches: many chances for something to go wrong between them."""
    return journal_settings.model_copy(update={"batch": BatchLimits(max_messages=200, max_seconds=0.1)})


@pytest.fixture(params=["eager", "cooperative-sticky", "KIP-848"])
def protocol(request: pytest.FixtureRequest, settings: JournalSettings) -> JournalSettings:
    """Settings of a member, for each way in which a group can agree."""
    if request.param == "eager":
        return settings
    if request.param == "cooperative-sticky":
        kafka = {**settings.kafka, "partition.assignment.strategy": "cooperative-sticky"}
        return settings.model_copy(update={"kafka": kafka})
    kafka = {name: value for name, value in settings.kafka.items() if name not in CLASSIC_ONLY}
    return settings.model_copy(update={"group_protocol": GroupProtocol.CONSUMER, "kafka": kafka})


@pytest.fixture
def records(
    create_topics: Callable[..., None], journal_writer: JournalWriter, settings: JournalSettings
) -> Records:
    """The journal of this test."""
    create_topics("content", "revision")
    return Records(journal_writer, settings.prefix, settings.group_id)


@pytest.fixture
def start_worker(settings: JournalSettings, tmp_path: Path) -> Iterator[StartWorker]:
    """``start_worker(redis_url)`` starts a member of the group; whatever still runs at the end is killed.

    Further arguments: ``accidents`` and ``pace`` (see ``worker_process.py``), ``journal`` in place of
    ``settings``, ``redis_timeout`` in seconds.
    """
    workers: list[Worker] = []

    def start(
        redis_url: str,
        *,
        accidents: Mapping[str, str] | None = None,
        pace: float = 0.0,
        journal: JournalSettings = settings,
        redis_timeout: float = 10.0,
    ) -> Worker:
        whole: dict[str, Any] = {
            "journal": journal.model_dump(mode="json"),
            "redis": {"url": redis_url, "timeout": redis_timeout},
            "objects": {"precision": PRECISION},
            "accidents": dict(accidents or {}),
            "pace": pace,
        }
        worker = Worker(tmp_path / f"worker-{len(workers) + 1}", whole)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.destroy()
