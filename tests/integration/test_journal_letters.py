"""What was set aside is read back as it was, from wherever it was kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message
from reading import MemoryView, Record, numbered, run, write

from journal_client.config import JournalSettings, QuarantineSettings
from journal_client.errors import BrokerUnreachable, ConfigurationError
from journal_client.ledger import Skip
from journal_client.letters import FileLetters, Letter, Letters, TopicLetters, open_letters
from journal_client.librdkafka import producer_config
from journal_client.quarantine import FileQuarantine, Quarantine, TopicQuarantine, open_quarantine

Create = Callable[..., None]


@pytest.fixture(params=["file", "topic"])
def kept_in(
    request: pytest.FixtureRequest, journal_settings: JournalSettings, journal_prefix: str, tmp_path: Path
) -> JournalSettings:
    """Settings with a quarantine of each kind."""
    place = (
        QuarantineSettings(file=tmp_path / "aside.jsonl")
        if request.param == "file"
        else QuarantineSettings(topic=f"{journal_prefix}-aside")
    )
    return journal_settings.model_copy(update={"quarantine": place})


def put(settings: JournalSettings, *messages: Message) -> None:
    quarantine: Quarantine = open_quarantine(settings.quarantine, producer_config(settings))
    for message in messages:
        quarantine.put(message, Skip.UNDECODABLE, "ValueError: no « number »")
    quarantine.flush(20)
    quarantine.close()


def record(offset: int, key: bytes | None = b"key", value: bytes | None = b"value") -> Message:
    return Message(
        topic="t", partition=2, offset=offset, key=key, value=value, timestamp=(1, 1_700_000_000_000)
    )


def pages(letters: Letters, limit: int) -> list[list[Letter]]:
    """Every page, each asked for with a cursor that was JSON meanwhile."""
    found = []
    cursor: dict[str, int] | None = {}
    while cursor is not None:
        page, following = letters.read(cursor, limit)
        found.append(page)
        cursor = None if following is None else json.loads(json.dumps(following))
    return found


def test_letters_say_all_that_was_known_of_the_record(kept_in: JournalSettings) -> None:
    put(kept_in, record(7))
    page, following = open_letters(kept_in).read({}, 10)
    assert following is None
    assert page == [
        Letter(
            topic="t",
            partition=2,
            offset=7,
            timestamp=1_700_000_000_000,
            reason="undecodable_value",
            detail="ValueError: no « number »",
            key=b"key",
            value=b"value",
            truncated=False,
        )
    ]
    assert page[0].id == "t:2:7"


@pytest.mark.parametrize("content", [(None, b"v"), (b"k", None), (b"", b""), (b"\xff\x00", b"\n\xfe")])
def test_any_bytes_and_none_come_back_as_they_were(kept_in: JournalSettings, content: Record) -> None:
    put(kept_in, record(0, *content))
    ((letter,),) = pages(open_letters(kept_in), 10)
    assert (letter.key, letter.value) == content


def test_what_a_reader_set_aside_is_read_back(
    kept_in: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("content")
    topic = f"{journal_prefix}.content"
    write(kept_in.brokers, topic, {3: [(b"a", b"1"), (None, b"2"), (b"c", b"three")]})
    settings = kept_in.model_copy(update={"object_types": ["content"]})
    run(settings, MemoryView(decoders={topic: int}))
    page, _ = open_letters(settings).read({}, 10)
    found = {letter.id: (letter.reason, letter.key, letter.value) for letter in page}
    assert found == {
        f"{topic}:3:1": ("null_key", None, b"2"),
        f"{topic}:3:2": ("undecodable_value", b"c", b"three"),
    }
    assert all((letter.timestamp or 0) > 1_600_000_000_000 for letter in page)


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 100])
def test_pages_hold_every_letter_once(kept_in: JournalSettings, limit: int) -> None:
    put(kept_in, *(record(offset, key) for offset, key in enumerate(numbered(20))))
    found = pages(open_letters(kept_in), limit)
    assert max(map(len, found)) == min(limit, 20)
    assert sorted(letter.offset for page in found for letter in page) == list(range(20))
    assert len(found) == -(-20 // limit)  # no empty page after the last full one


def test_a_page_begins_where_the_cursor_says_also_for_another_reader(kept_in: JournalSettings) -> None:
    put(kept_in, *(record(offset) for offset in range(5)))
    first, cursor = open_letters(kept_in).read({}, 2)
    assert cursor is not None
    rest, _ = open_letters(kept_in).read(cursor, 10)
    assert sorted(letter.offset for letter in first + rest) == list(range(5))


def test_a_record_set_aside_twice_is_two_letters_with_one_id(kept_in: JournalSettings) -> None:
    put(kept_in, record(7))
    put(kept_in, record(7))
    page, _ = open_letters(kept_in).read({}, 10)
    assert [letter.id for letter in page] == ["t:2:7", "t:2:7"]


def test_a_quarantine_nothing_was_put_into_yet_is_empty(kept_in: JournalSettings) -> None:
    assert open_letters(kept_in).read({}, 10) == ([], None)


def test_no_quarantine_is_one_line_that_names_the_settings(journal_settings: JournalSettings) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^[^\n]*journal\.quarantine\.file or journal\.quarantine\.topic$"
    ):
        open_letters(journal_settings)


# -- the file --------------------------------------------------------------------------------------


def write_file(path: Path, *offsets: int) -> None:
    quarantine = FileQuarantine(path)
    for offset in offsets:
        quarantine.put(record(offset), Skip.NULL_KEY, "")
    quarantine.flush(10)
    quarantine.close()


@pytest.mark.parametrize(
    "damage",
    [
        b"no JSON\n",
        b"{}\n",
        b"[]\n",
        b"\xff\xfe\x00\n",
        b'{"topic": "t", "partition": 2, "off',  # cut short; the writer ends the line when it is back
        b'{"topic":"t","partition":2,"offset":1,"timestamp":1,"reason":"r","detail":"","key":"?","value":null}\n',
        b'{"topic":"t","partition":2,"offset":"1","timestamp":1,"reason":"","detail":"","key":null,"value":null}\n',
        b'{"topic":"\xff","partition":2,"offset":1,"timestamp":1,"reason":"","detail":"","key":null,"value":null}\n',
    ],
    ids=["text", "empty", "list", "bytes", "torn", "base64", "type", "utf-8"],
)
def test_a_damaged_line_costs_itself_only(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "aside.jsonl"
    write_file(file, 1)
    with file.open("ab") as out:
        out.write(damage)
    write_file(file, 2)
    letters = FileLetters(file)
    page, cursor = letters.read({}, 10)
    assert [letter.offset for letter in page] == [1, 2]
    assert (letters.damaged, cursor) == (1, None)


def test_a_file_that_ends_in_a_torn_line_has_an_end(tmp_path: Path) -> None:
    file = tmp_path / "aside.jsonl"
    write_file(file, 1, 2)
    file.write_bytes(file.read_bytes()[:-30])
    letters = FileLetters(file)
    assert [[letter.offset for letter in page] for page in pages(letters, 1)] == [[1], []]
    assert letters.damaged == 1


def test_what_is_appended_later_is_found_from_the_last_cursor(tmp_path: Path) -> None:
    file = tmp_path / "aside.jsonl"
    write_file(file, 1, 2)
    letters = FileLetters(file)
    _, cursor = letters.read({}, 1)
    write_file(file, 3)
    assert cursor is not None
    page, _ = letters.read(cursor, 10)
    assert [letter.offset for letter in page] == [2, 3]


def test_a_place_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^\S+ is no file that can be read back; .*quarantine\.file$"
    ):
        FileLetters(tmp_path).read({}, 10)


def test_a_file_in_a_place_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"^cannot read \S+: Not a directory; .*quarantine\.file$"):
        FileLetters(tmp_path / "file" / "aside.jsonl").read({}, 10)


# -- the topic -------------------------------------------------------------------------------------


def test_a_record_of_somebody_else_costs_itself_only(
    journal_settings: JournalSettings, journal_prefix: str, create_topics: Create
) -> None:
    create_topics("aside")
    topic = f"{journal_prefix}.aside"
    write(journal_settings.brokers, topic, {0: [b"no letter"]})
    put(journal_settings.model_copy(update={"quarantine": QuarantineSettings(topic=topic)}), record(7))
    letters = TopicLetters(journal_settings, topic)
    page, cursor = letters.read({}, 10)
    assert [letter.offset for letter in page] == [7]
    assert (letters.damaged, cursor) == (1, None)


def test_letters_come_partition_by_partition_up_to_what_is_there(
    journal_settings: JournalSettings, journal_prefix: str
) -> None:
    topic = f"{journal_prefix}-aside"
    settings = journal_settings.model_copy(update={"quarantine": QuarantineSettings(topic=topic)})
    put(settings, *(record(offset, key) for offset, key in enumerate(numbered(40))))
    letters = TopicLetters(settings, topic)
    once = [letter for page in pages(letters, 7) for letter in page]
    again = [letter for page in pages(letters, 3) for letter in page]
    assert once == again
    first, cursor = letters.read({}, 7)
    put(settings, record(40))
    assert cursor is not None
    rest, end = letters.read(cursor, 100)
    assert (len(first), len(rest), end) == (7, 34, None)


def test_a_letter_without_content_says_so(journal_settings: JournalSettings, journal_prefix: str) -> None:
    topic = f"{journal_prefix}-aside"
    quarantine = TopicQuarantine(topic, producer_config(journal_settings) | {"message.max.bytes": 2_000})
    quarantine.put(record(7, value=b"v" * 5_000), Skip.UNDECODABLE, "no")
    quarantine.flush(10)
    quarantine.close()
    ((letter,),) = pages(TopicLetters(journal_settings, topic), 10)
    assert (letter.id, letter.key, letter.value, letter.truncated) == ("t:2:7", None, None, True)


def test_a_topic_without_brokers_is_one_line(journal_settings: JournalSettings) -> None:
    settings = journal_settings.model_copy(update={"brokers": "127.0.0.1:1", "start_timeout": 0.5})
    with pytest.raises(
        BrokerUnreachable, match=r"^no Kafka broker at 127\.0\.0\.1:1 [^\n]*journal\.brokers$"
    ):
        TopicLetters(settings, "aside").read({}, 10)
