"""An existing swh-counters settings file, understood as it is.

Such a file has a section ``counters`` (``cls: redis``, ``host: …``), a section ``journal`` in which
librdkafka's own keys stand beside the reader's, and perhaps a section ``history``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
"""Seconds in what Prometheus ends a duration with."""


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
        _history(_section(data, "history"), result)
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
    # Whoever scrapes the old server goes on as before.
    result.settings["exporter"] = {"legacy_family": True, **(result.settings.get("exporter") or {})}
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


def _history(section: dict[str, Any], result: Translation) -> None:
    kind = section.pop("cls", "prometheus")
    if kind != "prometheus":
        raise SettingsError(f"history.cls is {kind!r}, but should be 'prometheus'")
    settings: dict[str, Any] = {"metric": "swh_archive_object_total"}
    host, port = section.pop("prometheus_host", None), section.pop("prometheus_port", None)
    if host is not None:
        settings["url"] = _prometheus_url(str(host), 9090 if port is None else port)
    interval, labels = section.pop("interval", None), section.pop("labels", None)
    if interval is not None:
        settings["step"] = _seconds(interval)
    if labels is not None:
        settings["labels"] = labels
    directory = section.pop("cache_base_directory", None)
    if directory is not None:
        # The second holds what Prometheus has forgotten since.
        paths = [Path(str(directory)) / name for name in ("static_history.json", "history.json")]
        settings["static_files"] = [str(path) for path in paths if path.exists()]
        if not settings["static_files"]:
            result.notes.append(
                f"{directory} has no history.json: the history begins with what Prometheus has"
            )
    result.settings["history"] = {**settings, **section}


def _prometheus_url(host: str, port: object) -> str:
    url = host if "://" in host else f"http://{host}"
    parts = urlsplit(url)
    has_port = parts.netloc.rpartition(":")[2].isdecimal()
    return url if has_port else parts._replace(netloc=f"{parts.netloc}:{port}").geturl()


def _seconds(duration: object) -> int:
    """A duration as Prometheus writes it, such as ``12h`` or ``1d12h``; a number is seconds already."""
    text = str(duration)
    if text.isdecimal():
        return int(text)
    if not re.fullmatch(r"(\d+[smhdwy])+", text):
        raise SettingsError(f"history.interval is {duration!r}, but should be like 12h")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdwy])", text))


def _stop_at_end(value: object) -> bool:
    if value in ("stop", "continue", None):
        return value == "stop"
    raise SettingsError(f"journal.on_eof is {value!r}, but should be 'stop' or 'continue'")


def _put(settings: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    *sections, name = path
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value
