"""Records that cannot be used: kept with their reason and coordinates before the position passes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from reading import MemoryView, numbered, run, running, write

from journal_client.batch import Partition
from journal_client.client import JournalClient
from journal_client.config import JournalSettings, QuarantineSettings
from journal_client.embedded import EmbeddedKafka
from journal_client.errors import ConfigurationError, Unavailable
from journal_client.ledger import Drop, Skip
from journal_client.pytest_plugin import wait_for
from journal_client.quarantine import FileQuarantine, TopicQuarantine, open_quarantine

Create = Callable[..., None]


@pytest.fixture
def topic(journal_prefix: str, create_topics: Create) -> str:
    create_topics("content")
    return f"{journal_prefix}.content"


def poisoned(brokers: str, topic: str) -> None:
    """Six records, of which offset 1 has no key and offset 4 a value that is no number."""
    values = [b"0", b"1", b"2", None, b"four", b"5"]
    records = [(None if n == 1 else b"key-%d" % n, value) for n, value in enumerate(values)]
    write(brokers, topic, {0: records})


def view_of(topic: str) -> MemoryView:
    return MemoryView(decoders={topic: int})


def read(brokers: str, topic: str, count: int) -> list[Message]:
    """The first ``count`` records of a topic."""
    found: list[Message] = []
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "none", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
        wait_for(lambda: found.extend(consumer.consume(count, 0.1)) or len(found) >= count)
    finally:
        consumer.close()
    return found


def test_poison_costs_itself_only(journal_settings: JournalSettings, topic: str) -> None:
    poisoned(journal_settings.brokers, topic)
    view = view_of(topic)
    client = run(journal_settings, view)
    assert view.keys[topic] == [b"key-0", b"key-2", b"key-3", b"key-5"]
    assert view.values[topic] == [0, 2, None, 5]
    assert view.stands == {Partition(topic, 0): 6}
    assert client.ledger.summary() == {
        topic: {"polled": 6, "handled": 4, "skipped.null_key": 1, "skipped.undecodable_value": 1}
    }


def test_a_topic_of_nothing_but_poison_is_read_past(journal_settings: JournalSettings, topic: str) -> None:
    write(journal_settings.brokers, topic, {0: [(None, b"1")] * 10})
    view = view_of(topic)
    run(journal_settings, view)
    assert view.stands == {Partition(topic, 0): 10}


def test_poison_goes_to_a_file_with_reason_and_coordinates(
    journal_settings: JournalSettings, topic: str, tmp_path: Path
) -> None:
    poisoned(journal_settings.brokers, topic)
    file = tmp_path / "set-aside.jsonl"
    run(journal_settings, view_of(topic), quarantine=QuarantineSettings(file=file))
    first, second = map(json.loads, file.read_text().splitlines())
    assert first.pop("timestamp") > 1_600_000_000_000
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "reason": "null_key",
        "detail": "the record has no key",
        "key": None,
        "value": base64.b64encode(b"1").decode(),
    }
    assert (second["offset"], second["reason"]) == (4, "undecodable_value")
    assert second["detail"].startswith("ValueError: ")
    assert (base64.b64decode(second["key"]), base64.b64decode(second["value"])) == (b"key-4", b"four")


def test_a_file_is_appended_to(journal_settings: JournalSettings, topic: str, tmp_path: Path) -> None:
    poisoned(journal_settings.brokers, topic)
    file = tmp_path / "set-aside.jsonl"
    file.write_text("{}\n")
    run(journal_settings, view_of(topic), quarantine=QuarantineSettings(file=file))
    assert len(file.read_text().splitlines()) == 3


def test_poison_goes_to_a_topic_with_reason_and_coordinates(
    journal_settings: JournalSettings, topic: str, journal_prefix: str
) -> None:
    poisoned(journal_settings.brokers, topic)
    aside = f"{journal_prefix}-set-aside"
    run(journal_settings, view_of(topic), quarantine=QuarantineSettings(topic=aside))
    letters = {message.key(): message for message in read(journal_settings.brokers, aside, 2)}
    assert letters[None].value() == b"1"
    assert letters[b"key-4"].value() == b"four"
    headers = dict(letters[b"key-4"].headers() or [])
    assert headers.pop("detail").startswith(b"ValueError: ")
    assert int(headers.pop("timestamp")) > 1_600_000_000_000
    assert headers == {
        "reason": b"undecodable_value",
        "topic": topic.encode(),
        "partition": b"0",
        "offset": b"4",
    }


def test_a_full_disk_keeps_the_batch_and_the_reader(journal_settings: JournalSettings, topic: str) -> None:
    write(journal_settings.brokers, topic, {0: [(None, b"x" * 20_000), (b"key-1", b"1")]})
    view = view_of(topic)
    settings = journal_settings.model_copy(update={"quarantine": QuarantineSettings(file=Path("/dev/full"))})
    with running(JournalClient(settings, view)) as client:
        wait_for(lambda: client.health.store_problem)
        assert client.health.store_problem == "cannot write to /dev/full: No space left on device"
        assert view.calls == 0


def test_a_file_in_no_folder_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*No such file.*journal\.quarantine\.file"):
        open_quarantine(QuarantineSettings(file=tmp_path / "nowhere" / "file"), {})


def test_a_file_and_a_topic_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="both set; keep one"):
        open_quarantine(QuarantineSettings(file=tmp_path / "file", topic="aside"), {})


def test_a_file_that_takes_only_a_part_gets_the_rest_later(tmp_path: Path) -> None:
    quarantine = FileQuarantine(tmp_path / "file")
    whole = quarantine._file

    class Tight:
        """Takes five bytes, then is full, then has room."""

        name = "file"
        takes = iter([5, OSError(28, "No space left on device")])

        def write(self, data: bytes) -> int:
            take = next(self.takes, len(data))
            if isinstance(take, OSError):
                raise take
            return whole.write(data[:take])

        def fileno(self) -> int:
            return whole.fileno()

        def close(self) -> None:
            whole.close()

    quarantine._file = Tight()  # type: ignore[assignment]
    quarantine.put(letter(0), Skip.NULL_KEY, "")
    with pytest.raises(Unavailable, match="No space left"):
        quarantine.flush(1.0)
    quarantine.flush(1.0)
    quarantine.close()
    (line,) = (tmp_path / "file").read_text().splitlines()
    assert json.loads(line)["offset"] == 0


@pytest.mark.parametrize("torn", [b'{"topic": "t"', b'{"topic": "t"}\n', b""])
def test_a_line_that_a_crash_cut_short_costs_no_other(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(torn)
    quarantine = FileQuarantine(file)
    quarantine.put(letter(7), Skip.NULL_KEY, "")
    quarantine.flush(1.0)
    quarantine.close()
    *before, last = file.read_bytes().splitlines()
    assert before == ([torn.strip()] if torn else [])
    assert json.loads(last)["offset"] == 7


def letter(offset: int, value: bytes = b"value") -> Message:
    return Message(topic="t", partition=2, offset=offset, key=b"key", value=value, timestamp=(1, 1))


@pytest.fixture
def frozen() -> Iterator[EmbeddedKafka]:
    """A broker that answers nothing until it is resumed."""
    with EmbeddedKafka() as kafka:
        write(kafka.bootstrap_servers, "aside", {0: numbered(1)})
        kafka.pause()
        yield kafka


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"message.timeout.ms": 200},  # the producer gives them back
        {"queue.buffering.max.messages": 2},  # the producer does not even take them all
    ],
    ids=["slow", "given up", "full"],
)
def test_letters_that_a_topic_does_not_take_are_kept_whole(
    frozen: EmbeddedKafka, config: dict[str, object]
) -> None:
    quarantine = TopicQuarantine(
        "aside", {"bootstrap.servers": frozen.bootstrap_servers, "log_level": 0, **config}
    )
    for offset in range(5):
        quarantine.put(letter(offset), Skip.UNDECODABLE, "no")
    with pytest.raises(Unavailable, match="quarantine topic aside does not take records"):
        quarantine.flush(0.6)
    frozen.resume()

    def flushed() -> bool:
        try:
            quarantine.flush(2.0)
        except Unavailable:
            return False
        return True

    wait_for(flushed)
    quarantine.close()
    kept = read(frozen.bootstrap_servers, "aside", 6)
    letters = {dict(m.headers())["offset"]: (m.key(), m.value()) for m in kept if m.headers()}
    assert letters == {b"%d" % offset: (b"key", b"value") for offset in range(5)}


def test_a_letter_too_large_for_its_topic_leaves_its_coordinates(kafka_server: str, topic: str) -> None:
    quarantine = TopicQuarantine(topic, {"bootstrap.servers": kafka_server, "message.max.bytes": 2_000})
    quarantine.put(letter(7, b"v" * 5_000), Skip.UNDECODABLE, "no")
    quarantine.flush(10.0)
    quarantine.close()
    (message,) = read(kafka_server, topic, 1)
    headers = dict(message.headers() or [])
    assert (message.key(), message.value()) == (None, None)
    assert (headers["offset"], headers["truncated"]) == (b"7", b"value too large for this topic")


def test_the_batch_is_kept_while_the_quarantine_topic_takes_nothing(
    journal_settings: JournalSettings, topic: str
) -> None:
    poisoned(journal_settings.brokers, topic)
    view = view_of(topic)
    # a producer of transactions takes nothing before one was begun; a consumer does not know the key
    kafka = journal_settings.kafka | {"transactional.id": topic}
    aside = QuarantineSettings(topic="aside")
    settings = journal_settings.model_copy(update={"quarantine": aside, "kafka": kafka})
    with running(JournalClient(settings, view)) as client:
        wait_for(lambda: client.health.store_problem)
        assert client.health.store_problem == (
            "quarantine topic aside does not take records: Unable to produce message: Local: Erroneous state"
        )
        assert view.calls == 0
    assert client.ledger.dropped[topic, Drop.UNAVAILABLE] == 4
