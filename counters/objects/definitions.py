"""What is looked for inside the messages of each topic, and what a change of it means. Pure.

All workers of a group must look for the same: one that knows less would move the positions past records in
which it did not look. So Redis keeps the definition of each topic, every flush is refused under another one,
and whoever starts last decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Definition(msgspec.Struct, frozen=True):
    """What is looked for in one topic.

    Attributes:
        number: grows with every change, so that a worker can tell a newer definition from one that came back
        with an
            older state of Redis.
        counters: derived counters, with the paths of their values.
    """

    number: int
    counters: dict[str, list[str]]


def encode(definition: Definition) -> bytes:
    """The form in which Redis keeps it."""
    return msgspec.json.encode(definition)


def decode(entry: bytes | None) -> Definition | None:
    """The definition behind an entry; None if there is none, or if it is not one."""
    if entry is None:
        return None
    try:
        return msgspec.json.decode(entry, type=Definition)
    except msgspec.DecodeError:
        return None


def of_type(derived: Mapping[str, Mapping[str, Sequence[str]]], object_type: str) -> dict[str, list[str]]:
    """The part of ``objects.derived`` that is about one object type: counter to paths, in order of name."""
    return {
        counter: list(fields[object_type])
        for counter, fields in sorted(derived.items())
        if object_type in fields
    }


def redefined(before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> list[str]:
    """Counters that hold values of paths they do not have any more: they must be counted anew."""
    return [name for name in before.keys() & after.keys() if list(before[name]) != list(after[name])]
