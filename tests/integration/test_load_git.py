"""``counters load git`` against a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Message
from repositories import GitRepository

from counters.cli.load import load
from counters.config import Settings
from counters.errors import InputError
from counters.load.objects import OBJECT_TYPES, TARGET_TYPES
from journal_client.config import JournalSettings
from journal_client.pytest_plugin import wait_for


@pytest.fixture
def settings(journal_settings: JournalSettings) -> Settings:
    return Settings(journal=JournalSettings(brokers=journal_settings.brokers, prefix=journal_settings.prefix))


@pytest.fixture
def origin(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "origin")
    for number in range(5):
        repository.commit({f"folder{number}/file": f"{number}\n", "[bold]": f"{number}\n"})
    repository.git("tag", "--annotate", "--message", "first", "v1")
    return repository


def run(settings: Settings, *args: object) -> Result:
    return CliRunner().invoke(load, ["git", *map(str, args)], obj=settings)


def read_keys(brokers: str, prefix: str, count: int) -> dict[str, list[bytes]]:
    """The keys of ``count`` records below ``prefix``, for every object type."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": prefix, "auto.offset.reset": "earliest", "log_level": 0}
    )
    keys: dict[str, list[bytes]] = {object_type: [] for object_type in OBJECT_TYPES}
    records: list[Message] = []

    def complete() -> bool:
        records.extend(consumer.consume(count, timeout=0.1))
        return len(records) >= count

    try:
        known = consumer.list_topics(timeout=10).topics
        consumer.subscribe([topic for topic in known if topic.startswith(f"{prefix}.")])
        wait_for(complete, message=f"{count} records were not read")
    finally:
        consumer.close()
    for record in records:
        topic, key = record.topic(), record.key()
        assert topic is not None
        assert isinstance(key, bytes)
        keys[topic.rpartition(".")[2]].append(key)
    return keys


def test_the_objects_of_a_repository_and_its_fork_arrive_in_the_journal(
    origin: GitRepository, settings: Settings, create_topics: Callable[..., None]
) -> None:
    create_topics(*OBJECT_TYPES)
    fork = origin.clone(origin.path.with_name("fork"))
    fork.commits = 10
    fork.commit({"new": "new\n"})
    result = run(settings, origin.path, fork.path)
    assert result.exit_code == 0, result.output
    own, forked = origin.reachable(), fork.reachable()
    git_objects = sum(len(ids) for found in (own, forked) for ids in found.values())
    # Two snapshots; the origin is the same, published twice.
    keys = read_keys(settings.journal.brokers, settings.journal.prefix, git_objects + 4)
    for kind, object_type in TARGET_TYPES.items():
        assert set(keys[object_type]) == own[kind.decode()] | forked[kind.decode()]
    assert [len(set(keys[object_type])) for object_type in ("snapshot", "origin")] == [2, 1]


def test_the_summary_counts_what_was_published_and_what_was_not(
    origin: GitRepository, settings: Settings, create_topics: Callable[..., None]
) -> None:
    create_topics(*OBJECT_TYPES)
    lost = origin.id("HEAD~1:folder0/file")
    expected = origin.reachable()
    origin.object_file(lost).unlink()
    result = run(settings, origin.path)
    rows = [
        [cell.strip() for cell in line.split("│")[1:3]] for line in result.stdout.splitlines() if "│" in line
    ]
    counts = {TARGET_TYPES[kind.encode()]: len(ids) for kind, ids in expected.items()}
    counts |= {"content": counts["content"] - 1, "snapshot": 1, "origin": 1}
    assert {object_type: int(count) for object_type, count in rows} == counts
    assert f"{origin.path}: not published: 1 missing" in result.stderr


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    origin: GitRepository, settings: Settings, create_topics: Callable[..., None]
) -> None:
    create_topics(*OBJECT_TYPES)
    lines = run(settings, origin.path).stderr.splitlines()
    total = sum(map(len, origin.reachable().values())) + 2
    assert lines[0] == f"{origin.path}: listing objects"
    assert lines[-1].startswith(f"{origin.path}: {total} of {total} objects, ")


def test_options_win_over_the_settings(
    origin: GitRepository, kafka_server: str, journal_prefix: str, create_topics: Callable[..., None]
) -> None:
    create_topics(*OBJECT_TYPES)
    settings = Settings(journal=JournalSettings(brokers="127.0.0.1:1", prefix="elsewhere"))
    result = run(settings, "--brokers", kafka_server, "--prefix", journal_prefix, origin.path)
    assert result.exit_code == 0, result.output
    keys = read_keys(kafka_server, journal_prefix, sum(map(len, origin.reachable().values())) + 2)
    assert set(keys["revision"]) == origin.reachable()["commit"]


def test_nothing_is_sent_when_one_of_the_paths_is_wrong(origin: GitRepository, tmp_path: Path) -> None:
    # No broker would answer here, so a first record would be the error.
    settings = Settings(journal=JournalSettings(brokers="127.0.0.1:1"))
    result = run(settings, origin.path, tmp_path / "nowhere")
    assert isinstance(result.exception, InputError)


def test_an_origin_for_several_repositories_is_refused(origin: GitRepository) -> None:
    result = run(Settings(), "--origin", "https://example.org/x", origin.path, origin.path)
    assert result.exit_code == click.UsageError.exit_code
    assert "--origin" in result.stderr
