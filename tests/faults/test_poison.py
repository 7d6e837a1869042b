"""Records that are odd, enormous or broken: each costs at most itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer
from records import Records
from redis import Redis
from workers import Books, StartWorker

from journal_client.config import JournalSettings, QuarantineSettings
from journal_client.pytest_plugin import wait_for
from journal_client.serialization import encode_value

Count = Callable[..., Books]

UNDECODABLE = {
    "nothing": b"",
    "no MessagePack": b"\xc1",
    "a map cut off": encode_value({"author": {"fullname": b"A. N. Author"}})[:-3],
    "a list": encode_value([1, 2, 3]),
    "an author that is a text": encode_value({"author": "A. N. Author"}),
    "a list for a name": encode_value({"author": {"fullname": [b"A. N. Author"]}}),
    "text that is not UTF-8": b"\x81\xa6author\x81\xa8fullname\xa2\xff\xff",
}


@pytest.fixture
def count(
    settings: JournalSettings,
    records: Records,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> Count:
    """``count()``: some good records more, a worker that counts everything, its books."""

    def run(journal: JournalSettings = settings) -> Books:
        records.write(500)
        worker = start_worker(redis_url, journal=journal)
        records.expect_counted(redis_client)
        books = worker.stop()
        assert records.differences(redis_client) == []
        return books

    return run


def spoil(settings: JournalSettings, object_type: str, key: bytes | None, value: bytes | None) -> None:
    """Write a record that does not count."""
    producer = Producer({"bootstrap.servers": settings.brokers})
    producer.produce(f"{settings.prefix}.{object_type}", value, key)
    producer.flush()


def quarantined_in(
    settings: JournalSettings, *, file: Path | None = None, topic: str | None = None
) -> JournalSettings:
    """``settings`` with a quarantine."""
    return settings.model_copy(update={"quarantine": QuarantineSettings(file=file, topic=topic)})


def test_a_tombstone_counts_by_its_key(records: Records, count: Count) -> None:
    records.put("content", b"deleted content", None)
    records.put("revision", b"deleted revision", None)
    assert count().total("handled") == 502


def test_a_record_without_a_key_costs_itself_only(settings: JournalSettings, count: Count) -> None:
    spoil(settings, "content", None, b"whose?")
    spoil(settings, "revision", None, None)
    assert count().total("skipped.null_key") == 2


def test_the_empty_key_is_a_key(records: Records, count: Count) -> None:
    records.put("content", b"", b"")
    records.put("revision", b"", encode_value({}))
    count()


def test_keys_of_one_byte_to_64_kib_are_counted(records: Records, count: Count) -> None:
    random = Random(7)
    for size in (1, 2, 7, 8, 9, 63, 64, 65, 1_000, 65_535, 65_536):
        records.put("content", random.randbytes(size), b"")
        records.put("revision", random.randbytes(size), encode_value({}))
    count()


def test_values_of_a_megabyte_are_counted(records: Records, count: Count) -> None:
    person = b"Person of Many Words <words@example.org>"
    large = {"message": bytes(1_000_000), "author": {"fullname": person}}
    records.put("content", b"large content", bytes(1_000_000))
    records.put("revision", b"large revision", encode_value(large))
    records.keys["person"].add(person)
    count()


def test_null_persons_and_unknown_fields_are_passed_over(records: Records, count: Count) -> None:
    person = b"The Only Person <only@example.org>"
    for number, value in enumerate(
        [
            {"author": None, "committer": None},
            {"author": {"fullname": None}},
            {"author": {"name": b"no full name"}, "committer": {}},
            {"author": {"fullname": person, "shoe_size": 42}, "planet": [{"name": "Earth"}], "": {}},
        ]
    ):
        records.put("revision", b"revision %d" % number, encode_value(value))
    records.keys["person"].add(person)
    assert count().total("skipped.undecodable_value") == 0


@pytest.mark.parametrize("value", UNDECODABLE.values(), ids=UNDECODABLE.keys())
def test_an_undecodable_value_costs_itself_only(
    value: bytes, settings: JournalSettings, records: Records, count: Count
) -> None:
    records.write(100)
    spoil(settings, "revision", b"poison", value)
    assert count().total("skipped.undecodable_value") == 1


def test_an_undecodable_value_is_kept_in_a_file(
    settings: JournalSettings, count: Count, tmp_path: Path
) -> None:
    spoil(settings, "revision", b"poison", b"\xc1")
    count(quarantined_in(settings, file=tmp_path / "quarantine"))
    (line,) = (tmp_path / "quarantine").read_text().splitlines()
    letter = json.loads(line)
    assert (letter["topic"], letter["offset"]) == (f"{settings.prefix}.revision", 0)
    assert (letter["reason"], base64.b64decode(letter["value"])) == ("undecodable_value", b"\xc1")


def test_an_undecodable_value_is_kept_in_a_topic(settings: JournalSettings, count: Count) -> None:
    letters = f"{settings.prefix}-quarantine"
    spoil(settings, "revision", b"poison", b"\xc1")
    count(quarantined_in(settings, topic=letters))
    consumer = Consumer(
        {"bootstrap.servers": settings.brokers, "group.id": letters, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([letters])
    letter = wait_for(lambda: consumer.poll(0.1))
    consumer.close()
    assert (letter.key(), letter.value()) == (b"poison", b"\xc1")
    headers = dict(letter.headers() or [])
    assert headers["topic"] == f"{settings.prefix}.revision".encode()
    assert (headers["offset"], headers["reason"]) == (b"0", b"undecodable_value")


def test_nothing_is_read_past_poison_that_cannot_be_kept(
    settings: JournalSettings,
    records: Records,
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
    tmp_path: Path,
) -> None:
    """The disk of the quarantine is full; with a better one, the next worker keeps the record."""
    spoil(settings, "revision", b"poison", b"\xc1")
    worker = start_worker(redis_url, journal=quarantined_in(settings, file=Path("/dev/full")))
    worker.expect("No space left on device")
    books = worker.stop()
    assert (books.total("handled"), books.total("skipped.undecodable_value")) == (0, 1)
    assert not redis_client.exists(records.positions_key)
    records.write(500)
    worker = start_worker(redis_url, journal=quarantined_in(settings, file=tmp_path / "quarantine"))
    records.expect_counted(redis_client)
    worker.stop()
    assert len((tmp_path / "quarantine").read_text().splitlines()) == 1


def test_a_topic_that_appears_later_is_counted(
    records: Records,
    create_topics: Callable[..., None],
    start_worker: StartWorker,
    redis_url: str,
    redis_client: Redis,
) -> None:
    records.write(500)
    worker = start_worker(redis_url)
    records.expect_counted(redis_client)
    create_topics("release")
    author = b"Person Released <released@example.org>"
    records.put("release", b"release", encode_value({"author": {"fullname": author}, "name": b"v1"}))
    records.put("release", b"anonymous", encode_value({"author": None}))
    records.keys["person"].add(author)
    records.expect_counted(redis_client)
    worker.stop()
