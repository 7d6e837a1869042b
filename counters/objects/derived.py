"""Counters of values found inside messages, such as the distinct authors named by revisions.

Pure: a message's bytes in, the values to count out. Only the configured fields are decoded; the rest of the
message is skipped without being built, so unknown fields and extension types in them cost and break nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Self, TypeAlias

import msgspec

from counters.errors import SettingsError

Values: TypeAlias = tuple[bytes, ...]
"""Values, in the order of the paths that found them; some may be there twice."""

_SETTING: Final = "objects.derived"

_Path: TypeAlias = tuple[str, ...]
_Tree: TypeAlias = "dict[str, _Tree]"
"""Field names to what is wanted below them; nothing below: the field holds a value."""


def build_decoder(paths: Sequence[str]) -> Callable[[bytes], Values]:
    """A function from a msgpack message to the values at ``paths`` (``author.fullname``).

    A path whose field or parent is absent or null yields nothing. Byte strings are taken as they are, strings
    as UTF-8, integers in decimal. The function raises ``ValueError`` or ``msgspec.DecodeError`` on anything
    else: a message that is not a map or is cut off, a path through something that is not a map, a list or a
    truth value where a value should be. Maps on the way need string keys.

    Raises:
        SettingsError: a path has an empty part, or runs through another path's value.
    """
    parsed = _parse(paths, _SETTING)
    tree = _grow_tree(parsed, _SETTING)
    decode = _build_record_decoder(tree)
    collect = _build_collector(tree, parsed)
    return lambda message: collect(decode(message))


@dataclass(frozen=True, slots=True)
class Derived:
    """Which object types feed which derived counters, and how to read their messages.

    Attributes:
        sources: for each derived counter, the object types that feed it.
    """

    sources: Mapping[str, tuple[str, ...]]
    _feeds: Mapping[str, tuple[str, ...]]
    _decoders: Mapping[str, Callable[[bytes], tuple[Values, ...]]]

    @classmethod
    def from_config(cls, config: Mapping[str, Mapping[str, Sequence[str]]]) -> Self:
        """Read ``{counter: {object type: [paths]}}``, the setting ``objects.derived``.

        Raises:
            SettingsError: a counter has no object type, an object type no path, or a path is wrong.
        """
        feeds: dict[str, dict[str, list[_Path]]] = {}
        for counter, fields in config.items():
            if not fields:
                raise SettingsError(f"{_SETTING}.{counter} names no object type to read values from")
            for object_type, paths in fields.items():
                setting = f"{_SETTING}.{counter}.{object_type}"
                if not paths:
                    raise SettingsError(f"{setting} names no field to count")
                feeds.setdefault(object_type, {})[counter] = _parse(paths, setting)
        return cls(
            sources={counter: tuple(fields) for counter, fields in config.items()},
            _feeds={object_type: tuple(counters) for object_type, counters in feeds.items()},
            _decoders={
                object_type: _build_shared_decoder(object_type, list(counters.values()))
                for object_type, counters in feeds.items()
            },
        )

    def feeds(self, object_type: str) -> tuple[str, ...]:
        """Names of the derived counters that messages of ``object_type`` feed."""
        return self._feeds.get(object_type, ())

    def decoder(self, object_type: str) -> Callable[[bytes], tuple[Values, ...]] | None:
        """A function from a message to the values for each counter of ``feeds(object_type)``, in that order.

        The message is decoded once for all of them. None if the type feeds no derived counter. What the
        function accepts and raises is described at ``build_decoder``.
        """
        return self._decoders.get(object_type)


def _build_shared_decoder(
    object_type: str, paths_of_counters: Sequence[Sequence[_Path]]
) -> Callable[[bytes], tuple[Values, ...]]:
    tree = _grow_tree([path for paths in paths_of_counters for path in paths], f"{_SETTING}.*.{object_type}")
    decode = _build_record_decoder(tree)
    collectors = [_build_collector(tree, paths) for paths in paths_of_counters]
    if len(collectors) == 1:  # nearly always: worth a quarter of the time a message takes
        (collect_for_one,) = collectors
        return lambda message: (collect_for_one(decode(message)),)

    def decode_for_all(message: bytes) -> tuple[Values, ...]:
        record = decode(message)
        return tuple([collect(record) for collect in collectors])

    return decode_for_all


def _parse(paths: Sequence[str], setting: str) -> list[_Path]:
    parsed = [tuple(path.split(".")) for path in paths]
    for path, parts in zip(paths, parsed, strict=True):
        if any(not part or part != part.strip() for part in parts):
            raise SettingsError(
                f"{setting}: {path!r} is not a path; join field names by dots, like author.fullname"
            )
    return parsed


def _grow_tree(paths: Sequence[_Path], setting: str) -> _Tree:
    tree: _Tree = {}
    ends: list[tuple[_Path, _Tree]] = []
    for path in paths:
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        ends.append((path, node))
    for path, below in ends:
        if below:
            raise SettingsError(
                f"{setting}: {'.'.join(path)!r} is a value to count, but another path looks inside it"
            )
    return tree


def _build_record_decoder(tree: _Tree) -> Callable[[bytes], msgspec.Struct]:
    return msgspec.msgpack.Decoder(_define_struct(tree)).decode


def _define_struct(tree: _Tree) -> type[msgspec.Struct]:
    """A struct of just the wanted fields. Its attributes are numbered, because a field may have any name."""
    names = {f"f{number}": name for number, name in enumerate(tree)}
    # A value may have several types, which msgspec refuses to see in one union: the collector checks it.
    fields: list[tuple[str, Any, None]] = [
        (attribute, _define_struct(tree[name]) | None if tree[name] else Any, None)
        for attribute, name in names.items()
    ]
    return msgspec.defstruct("Wanted", fields, rename=names, frozen=True, gc=False)


def _build_collector(tree: _Tree, paths: Sequence[_Path]) -> Callable[[msgspec.Struct], Values]:
    ways = [(".".join(path), attrgetter(_attributes(tree, path))) for path in paths]
    # This runs for every message, and nearly always every value is there and a byte string.
    get_all = attrgetter(*(_attributes(tree, path) for path in paths))
    every = get_all if len(paths) > 1 else lambda record: (get_all(record),)
    only_bytes = [bytes] * len(paths)

    def collect(record: msgspec.Struct) -> Values:
        try:
            values: Values = every(record)
        except AttributeError:  # a part on the way is null
            return one_by_one(record)
        return values if list(map(type, values)) == only_bytes else one_by_one(record)

    def one_by_one(record: msgspec.Struct) -> Values:
        found: list[bytes] = []
        for path, get in ways:
            try:
                value = get(record)
            except AttributeError:
                continue
            if value is not None:
                found.append(_as_bytes(value, path))
        return tuple(found)

    return collect


def _attributes(tree: _Tree, path: _Path) -> str:
    """The path in the names of the structs' attributes: ``f0.f1``."""
    names = []
    for part in path:
        names.append(f"f{list(tree).index(part)}")
        tree = tree[part]
    return ".".join(names)


def _as_bytes(value: object, path: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise ValueError(f"{path} holds a {type(value).__name__}, not bytes, a string or an integer")
