"""An existing swh-counters settings file, understood as it is.

Such a file has a section ``counters`` (``cls: redis``, ``host: …``), a section ``journal`` in which
librdkafka's own keys stand beside the reader's, and perhaps a section ``history``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from counters.errors import SettingsError

_RENAMED = {
    "batch_size": ("batch", "max_messages"),
    "stop_after_objects": ("stop_after",),
    "stop_on_eof": ("stop_at_end",),
    "group.id": ("group_id",),
    "group.instance.id": ("group_instance_id",),
    "group.protocol": ("group_protocol",),
    "auto.offset.reset": ("auto_offset_reset",),
    "bootstrap.servers": ("brokers",),
}

_WITHOUT_EFFECT = {
    "cls": None,
    "process_timeout": "journal.process_timeout has no counterpart: end the process with a signal",
    "privileged": "journal.privileged is ignored: the public topics carry the same objects",
    "enable.auto.commit": "journal.enable.auto.commit is ignored: positions are kept with the counters",
    "enable.auto.offset.store": "journal.enable.auto.offset.store is ignored: see enable.auto.commit",
}


@dataclass(slots=True)
class Translation:
    """The settings in today's shape, and what the operator should know about the rest."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def is_legacy(data: Mapping[str, Any]) -> bool:
    """Whether the file is one of swh-counters: only those have a section ``counters``."""
    return "counters" in data


def translate(data: Mapping[str, Any]) -> Translation:
    """Translate the sections ``counters``, ``journal`` and ``history``; sections of today's shape stay.

    Keys nobody knows are passed on, so that they are reported like any other unknown setting.

    Raises:
        SettingsError: the counters are not in Redis, or a section is not a mapping.
    """
    translated = ("counters", "journal", "history")
    result = Translation({key: value for key, value in data.items() if key not in translated})
    _counters(_section(data, "counters"), result)
    if "journal" in data:
        _journal(_section(data, "journal"), result)
    if "history" in data:
        result.notes.append("section history is ignored: there is no history yet")
    return result


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = data[name] or {}
    if not isinstance(section, Mapping):
        raise SettingsError(f"section {name} is {section!r:.40}, but should hold keys and values")
    return {str(key): value for key, value in section.items()}


def _counters(section: dict[str, Any], result: Translation) -> None:
    kind = section.pop("cls", "redis")
    if kind != "redis":
        raise SettingsError(
            f"counters.cls is {kind!r}, but workers write to Redis themselves; "
            "set counters.cls to redis and counters.host to <host>:<port>"
        )
    # The older form nests the arguments: {cls: redis, args: {host: …}}.
    arguments = section.pop("args", None) or section
    host = arguments.pop("host", "localhost")
    unknown = [f"counters.{key}" for key in arguments]
    if unknown:
        raise SettingsError(f"unknown setting {unknown[0]}; a section counters has cls and host")
    result.settings["redis"] = {"url": redis_url(str(host)), **(result.settings.get("redis") or {})}
    adopted = {"layout": "legacy", "precision": 14}
    result.settings["objects"] = {**adopted, **(result.settings.get("objects") or {})}


def redis_url(host: str) -> str:
    """The URL of ``host``, ``host:port``, ``[v6]:port``, a bare IPv6 address, or a URL already."""
    if "://" in host:
        return host
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    has_port = host.rpartition(":")[2].isdecimal() and not host.endswith("]")
    return f"redis://{host}/0" if has_port else f"redis://{host}:6379/0"


def _journal(section: dict[str, Any], result: Translation) -> None:
    settings: dict[str, Any] = {}
    kafka: dict[str, Any] = {}
    entries = {**section, **(section.pop("consumer_settings", None) or {})}
    entries.pop("consumer_settings", None)
    for key, value in entries.items():
        if key in _WITHOUT_EFFECT:
            note = _WITHOUT_EFFECT[key]
            result.notes.extend([note] if note and value else [])
        elif key == "on_eof":
            settings["stop_at_end"] = _stop_at_end(value)
        elif value is None:
            continue
        elif key in _RENAMED:
            _put(settings, _RENAMED[key], value)
        elif "." in key:
            kafka[key] = value
        else:
            settings[key] = value
    if kafka:
        settings["kafka"] = {**kafka, **(settings.get("kafka") or {})}
    result.settings["journal"] = settings


def _stop_at_end(value: object) -> bool:
    if value in ("stop", "continue", None):
        return value == "stop"
    raise SettingsError(f"journal.on_eof is {value!r}, but should be 'stop' or 'continue'")


def _put(settings: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    *sections, name = path
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value
