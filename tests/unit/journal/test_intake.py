"""From messages to keys and values; what cannot be used costs itself only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Message

from journal_client.batch import Batch
from journal_client.intake import Intake
from journal_client.ledger import Ledger, Skip


def number(value: bytes) -> int:
    """A decoder that knows digits only."""
    return int(value)


@dataclass
class Desk:
    """An intake with its batch, its books, and what it set aside as (offset, reason, detail)."""

    decoders: dict[str, Callable[[bytes], object]] = field(default_factory=dict)
    batch: Batch = field(default_factory=Batch)
    ledger: Ledger = field(default_factory=Ledger)
    aside: list[tuple[int | None, Skip, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._intake = Intake(self.decoder, self.ledger, self._set_aside)

    def decoder(self, topic: str) -> Callable[[bytes], object] | None:
        self.asked.append(topic)
        return self.decoders.get(topic)

    def _set_aside(self, message: Message, reason: Skip, detail: str) -> None:
        self.aside.append((message.offset(), reason, detail))

    def take(self, *messages: Message) -> None:
        self._intake.take(messages, self.batch)
        assert self.ledger.imbalance(self.batch.counts()) == {}


def message(
    offset: int, key: bytes | None, value: bytes | None = b"1", topic: str = "t", at: int = 0
) -> Message:
    return Message(topic=topic, partition=0, offset=offset, key=key, value=value, timestamp=(1, at))


def test_keys_are_taken_in_order() -> None:
    desk = Desk()
    desk.take(message(0, b"a"), message(1, b"b"))
    desk.take(message(2, b"a"))
    assert desk.batch.keys == {"t": [b"a", b"b", b"a"]}


def test_nothing_is_taken_from_no_messages() -> None:
    desk = Desk()
    desk.take()
    assert len(desk.batch) == 0
    assert desk.ledger.polled == {}


def test_topics_are_kept_apart_in_order() -> None:
    desk = Desk()
    desk.take(message(0, b"a"), message(0, b"x", topic="u"), message(1, b"b"))
    assert desk.batch.keys == {"t": [b"a", b"b"], "u": [b"x"]}
    assert desk.ledger.polled == {"t": 2, "u": 1}


def test_an_empty_key_is_a_key() -> None:
    desk = Desk()
    desk.take(message(0, b""))
    assert desk.batch.keys == {"t": [b""]}


def test_a_record_without_a_key_is_set_aside() -> None:
    desk = Desk()
    desk.take(message(7, b"a"), message(8, None), message(9, b"b"))
    assert desk.batch.keys == {"t": [b"a", b"b"]}
    assert desk.aside == [(8, Skip.NULL_KEY, "the record has no key")]
    assert desk.ledger.skipped == {("t", Skip.NULL_KEY): 1}


def test_values_are_not_touched_without_a_decoder() -> None:
    desk = Desk()
    desk.take(message(0, b"a", b"anything"))
    assert desk.batch.values == {}
    assert desk.batch.size == 1


def test_decoded_values_are_aligned_with_their_keys() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, b"a", b"10"), message(1, b"b", b"20"))
    assert desk.batch.keys == {"t": [b"a", b"b"]}
    assert desk.batch.values == {"t": [10, 20]}


def test_a_tombstone_is_never_decoded_and_its_key_counts() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, b"a", None), message(1, b"b", b"2"))
    assert desk.batch.keys == {"t": [b"a", b"b"]}
    assert desk.batch.values == {"t": [None, 2]}


def test_an_undecodable_value_costs_that_record_only() -> None:
    desk = Desk({"t": number})
    values = [b"1", None, b"two", b"3", b""]
    desk.take(*(message(n, b"%d" % n, value) for n, value in enumerate(values)))
    assert desk.batch.keys == {"t": [b"0", b"1", b"3"]}
    assert desk.batch.values == {"t": [1, None, 3]}
    assert [(offset, reason) for offset, reason, _ in desk.aside] == [
        (2, Skip.UNDECODABLE),
        (4, Skip.UNDECODABLE),
    ]
    assert desk.ledger.skipped == {("t", Skip.UNDECODABLE): 2}


def test_the_detail_of_an_undecodable_value_is_what_the_decoder_said() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, b"a", b"two"))
    ((_, _, detail),) = desk.aside
    assert detail.startswith("ValueError: invalid literal")


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), MemoryError(), AssertionError("no")])
def test_a_decoder_may_raise_anything(error: Exception) -> None:
    def decode(value: bytes) -> object:
        if value == b"poison":
            raise error
        return value

    desk = Desk({"t": decode})
    desk.take(message(0, b"a", b"fine"), message(1, b"b", b"poison"))
    assert desk.batch.values == {"t": [b"fine"]}
    assert [offset for offset, _, _ in desk.aside] == [1]


def test_a_record_without_a_key_is_not_decoded() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, None, b"poison"), message(1, b"b", b"2"))
    assert [reason for _, reason, _ in desk.aside] == [Skip.NULL_KEY]
    assert desk.batch.values == {"t": [2]}


def test_the_size_is_that_of_keys_and_of_decoded_values() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, b"abc", b"12"), message(1, b"de", None), message(0, b"f", b"xyz", topic="u"))
    assert desk.batch.size == 3 + 2 + 2 + 1


def test_what_is_set_aside_has_no_size() -> None:
    desk = Desk({"t": number})
    desk.take(message(0, b"abc", b"poison"))
    assert desk.batch.size == 0


def test_the_newest_time_never_goes_back() -> None:
    desk = Desk()
    desk.take(message(0, b"a", at=2_000))
    desk.take(message(1, b"b", at=1_000))
    assert desk.batch.newest == 2_000


def test_the_handler_is_asked_once_per_topic_for_its_decoder() -> None:
    desk = Desk()
    for offset in range(3):
        desk.take(message(offset, b"a"), message(offset, b"b", topic="u"))
    assert desk.asked == ["t", "u"]
