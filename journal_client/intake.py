"""From librdkafka messages to keys and values; what cannot be used is set aside with a reason.

This runs once per record of the whole journal, so its common case touches a message only through ``map`` over
unbound methods: 0.12 µs a record for error, topic and key together, where a Python loop over the same three
calls costs 0.35 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import Message

from journal_client.batch import Batch
from journal_client.handler import Decoder
from journal_client.ledger import Ledger, Skip

SetAside = Callable[[Message, Skip, str], None]
"""Receives a record that cannot be used, the reason, and a detail for people."""


class Intake:
    """Step 2 of the loop: adds messages, all of them records of ours, to a batch."""

    def __init__(
        self, decoder_of: Callable[[str], Decoder | None], ledger: Ledger, set_aside: SetAside
    ) -> None:
        self._decoder_of = decoder_of
        self._ledger = ledger
        self._set_aside = set_aside
        self._decoders: dict[str, Decoder | None] = {}

    def take(self, messages: Sequence[Message], batch: Batch) -> None:
        """Add ``messages`` to ``batch`` and book them. They must be free of errors and of foreign
        partitions."""
        if not messages:
            return
        topics = list(map(Message.topic, messages))
        first = topics[0]
        if topics.count(first) == len(topics):
            self._take_topic(str(first), messages, batch)
        else:
            for topic, group in _by_topic(topics, messages).items():
                self._take_topic(topic, group, batch)
        batch.newest = max(batch.newest, messages[-1].timestamp()[1])

    def _take_topic(self, topic: str, messages: Sequence[Message], batch: Batch) -> None:
        self._ledger.polled[topic] += len(messages)
        keys = list(map(Message.key, messages))
        if None in keys:
            messages = self._without_null_keys(topic, messages)
            keys = list(map(Message.key, messages))
        decoder = self._decoder(topic)
        if decoder is not None:
            values = list(map(Message.value, messages))
            try:
                decoded = [None if value is None else decoder(value) for value in values]
            except Exception:  # the decoder may raise anything; find out which record it was
                keys, values, decoded = self._decode_one_by_one(topic, messages, decoder)
            batch.values.setdefault(topic, []).extend(decoded)
            batch.size += sum(map(len, filter(None, values)))
        batch.keys.setdefault(topic, []).extend(keys)  # type: ignore[arg-type]
        batch.size += sum(map(len, keys))  # type: ignore[arg-type]

    def _decoder(self, topic: str) -> Decoder | None:
        if topic not in self._decoders:
            self._decoders[topic] = self._decoder_of(topic)
        return self._decoders[topic]

    def _without_null_keys(self, topic: str, messages: Sequence[Message]) -> Sequence[Message]:
        kept = []
        for message in messages:
            if message.key() is None:
                self._reject(topic, message, Skip.NULL_KEY, "the record has no key")
            else:
                kept.append(message)
        return kept

    def _decode_one_by_one(
        self, topic: str, messages: Sequence[Message], decoder: Decoder
    ) -> tuple[list[bytes | None], list[bytes | None], list[object]]:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        decoded: list[object] = []
        for message in messages:
            value = message.value()
            try:
                result = None if value is None else decoder(value)
            except Exception as error:  # a decoder may raise anything on a value it cannot decode
                self._reject(topic, message, Skip.UNDECODABLE, f"{type(error).__name__}: {error}")
                continue
            keys.append(message.key())
            values.append(value)
            decoded.append(result)
        return keys, values, decoded

    def _reject(self, topic: str, message: Message, reason: Skip, detail: str) -> None:
        self._ledger.skipped[topic, reason] += 1
        self._set_aside(message, reason, detail)


def _by_topic(topics: Sequence[str | None], messages: Sequence[Message]) -> dict[str, list[Message]]:
    groups: dict[str, list[Message]] = {}
    for topic, message in zip(topics, messages, strict=True):
        if topic is None:
            continue
        group = groups.get(topic)
        if group is None:
            groups[topic] = [message]
        else:
            group.append(message)
    return groups
