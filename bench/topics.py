"""The journals that the contenders read: the same records in every run, by fixed seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from counters.load.objects import Date, Person, Revision, Timestamp, parse_person
from journal_client.serialization import encode_value
from journal_client.writer import JournalWriter

PARTITIONS = 4
"""Partitions of every topic."""

KEY_TYPES = ("content", "directory", "snapshot")
"""Object types that swh-counters, too, counts by their keys alone."""

READINGS = 2
"""How often an object turns up in the journal, on average: writers meet the same objects."""

VALUE_SIZE = 150
"""Bytes of a value that nobody looks at. They are random, so that compression does not hide them."""

REVISIONS_PER_PERSON = 10

Record = tuple[str, bytes, bytes]
"""Object type, key, value."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Filled topics: ``<prefix>.<type>`` for each of ``types``, ``records`` messages together."""

    brokers: str
    prefix: str
    types: tuple[str, ...]
    records: int


@contextmanager
def empty_topics(brokers: str, types: tuple[str, ...]) -> Iterator[Topics]:
    """Topics of their own; deleted afterwards."""
    prefix = f"bench-{uuid4().hex[:8]}"
    names = [f"{prefix}.{name}" for name in types]
    admin = AdminClient({"bootstrap.servers": brokers})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result()
    try:
        yield Topics(brokers, prefix, types, 0)
    finally:
        for deleted in admin.delete_topics(names).values():
            deleted.result()


@contextmanager
def filled(brokers: str, types: tuple[str, ...], records: Iterator[Record]) -> Iterator[Topics]:
    """Topics of their own with these records; deleted afterwards."""
    with empty_topics(brokers, types) as topics:
        written = 0
        with JournalWriter(brokers, topics.prefix) as writer:
            for object_type, key, value in records:
                writer.write(object_type, key, value)
                written += 1
        yield Topics(brokers, topics.prefix, types, written)


def key_records(number: int, seed: int = 1) -> Iterator[Record]:
    """Records whose 20-byte keys are all that counts, over all types, ``READINGS`` per key on average."""
    rng = random.Random(seed)
    keys = [rng.randbytes(20) for _ in range(max(1, number // READINGS))]
    for _ in range(number):
        chosen = rng.randrange(len(keys))
        yield KEY_TYPES[chosen % len(KEY_TYPES)], keys[chosen], rng.randbytes(VALUE_SIZE)


def revision_records(number: int, seed: int = 2) -> Iterator[Record]:
    """Revisions, all different, by ``number / REVISIONS_PER_PERSON * 2`` invented persons."""
    rng = random.Random(seed)
    persons = [_person(rng, i) for i in range(max(1, 2 * number // REVISIONS_PER_PERSON))]
    for _ in range(number):
        key = rng.randbytes(20)
        date = Date(Timestamp(rng.randrange(1_000_000_000, 1_700_000_000)), b"+0100")
        revision = Revision(
            id=key,
            message=b"Describe what changed and why.\n" * rng.randrange(1, 6),
            author=rng.choice(persons),
            committer=rng.choice(persons),
            date=date,
            committer_date=date,
            directory=rng.randbytes(20),
            parents=[rng.randbytes(20)],
            extra_headers=[],
        )
        yield "revision", key, encode_value(revision)


def _person(rng: random.Random, number: int) -> Person:
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    return parse_person(f"{first} {last} <{first}.{last}.{number}@example.org>".lower().encode())


_FIRST = ("Ada", "Bela", "Chloé", "Dmitri", "Emeka", "Fumiko", "Grete", "Hana", "Ivo", "Jun", "Kaisa", "Lin")
_LAST = ("Abara", "Brandt", "Castro", "Dubois", "Eriksen", "Fonseca", "Grigorov", "Hara", "Ito", "Jansen")
