"""Reading the settings: one YAML file, overridden by environment variables ``COUNTERS_SECTION__KEY``.

Every mistake ends in one line that names where it is, the key, the value and what is allowed. The models,
with the meaning of each key, are in ``counters.config``.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource

from counters.config import Settings
from counters.errors import SettingsError
from counters.legacy import is_legacy, translate

ENV_PREFIX = "COUNTERS_"
NOT_SETTINGS = frozenset({"COUNTERS_CONFIG", "COUNTERS_LOG_LEVEL", "COUNTERS_LOG_FORMAT"})
"""Variables that stand for options of the command line."""

_SERVICE_LINK = re.compile(r"COUNTERS_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""Kubernetes puts these into every pod beside a service called ``counters`` or ``counters-…``."""

_SECRET = re.compile(r"password|secret|token|credential|(^|\.)key($|\.pem)|\.pem$|sasl\.jaas", re.IGNORECASE)
_HIDDEN = "***"

_log = logging.getLogger("counters.settings")


class _Environment(Settings, BaseSettings):  # type: ignore[misc]  # the two kinds of model_config
    """The same sections, in the shape that lets pydantic-settings take variables apart. Never made."""


class _Source(EnvSettingsSource):
    """Takes ``COUNTERS_A__B__C`` apart; what is not JSON stays text and is judged with everything else."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value


def load_settings(path: Path | None = None) -> Settings:
    """The settings of ``path`` and the environment; without either, the defaults.

    A settings file of swh-counters (it has a section ``counters``) is translated.

    Raises:
        SettingsError: one line with the place, the key, the value and what is allowed.
    """
    data: Mapping[str, Any] = {}
    if path is not None:
        data = _read_yaml(path)
        if is_legacy(data):
            translation = translate(data)
            data = translation.settings
            for note in translation.notes:
                _log.warning("%s: %s", path, note)
    variables = _read_environment()
    try:
        return Settings.model_validate(_merged(data, variables))
    except ValidationError as error:
        raise SettingsError(explain(error, str(path or "settings"), variables)) from error


def effective_settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Every setting as (dotted key, value, ``default`` | ``set`` | ``environment``); secrets are hidden."""
    variables = {name for name, _ in _setting_variables()}
    rows = []
    for key, value, is_set in _leaves(settings, ""):
        source = "environment" if _variable(key) in variables else "set" if is_set else "default"
        rows.append((key, _shown(key, value), source))
    return rows


def explain(
    error: ValidationError, origin: str = "settings", variables: Mapping[str, Any] | None = None
) -> str:
    """The first error in one line: where, which key, which value, what is allowed; and how many more."""
    # An unknown key often causes the other errors (the setting it was meant for keeps its default).
    details = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    first = details[0]
    key = ".".join(str(part) for part in first["loc"])
    if variables and _contains(variables, first["loc"]):
        origin = "environment " + _variable(key)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{origin}: {_sentence(first, key)}{more}"


# Reading


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}; set --config or COUNTERS_CONFIG") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: byte {error.start} is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise SettingsError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        sections = ", ".join(Settings.model_fields)
        raise SettingsError(f"{path}: expected sections ({sections}), found {data!r:.40}")
    return {str(key): value for key, value in data.items() if value is not None}


def _setting_variables() -> Iterator[tuple[str, str]]:
    for name, value in sorted(os.environ.items()):
        upper = name.upper()
        ours = upper.startswith(ENV_PREFIX) and upper not in NOT_SETTINGS
        if ours and ("__" in upper or not _SERVICE_LINK.fullmatch(upper)):
            yield upper, value


def _read_environment() -> dict[str, Any]:
    """The variables as nested sections; values are still text, or what their JSON says."""
    names = [name for name, _ in _setting_variables()]
    for name in names:
        section = name.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if section not in Settings.model_fields:
            known = [_variable(key) for key, _, _ in _leaves(Settings(), "")]
            raise SettingsError(f"environment: unknown setting {name}{_nearest(name, known, ENV_PREFIX)}")
        for other in names:
            if other.startswith(f"{name}__"):
                raise SettingsError(f"environment: {name} and {other} contradict each other; set one of them")
    data = _Source(_Environment, env_prefix=ENV_PREFIX, env_nested_delimiter="__")()
    journal = data.get("journal")
    if isinstance(journal, dict) and isinstance(journal.get("kafka"), dict):
        # A shell cannot set a variable with dots in its name, and librdkafka has no keys with underscores.
        journal["kafka"] = {key.replace("_", "."): value for key, value in journal["kafka"].items()}
    return data


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, new in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            result[key] = _merged(old, new)
        else:
            result[key] = new
    return result


# Telling what is wrong


def _sentence(error: ErrorDetails, key: str) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key}{_suggestion(error['loc'])}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] == "value_error":
        return f"{key}: {message}"
    return f"{key} is {_shown(key, error['input'])}, but {message}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    *section, name = (str(part) for part in loc)
    known = [key for key, _, _ in _leaves(Settings(), "")] + list(Settings.model_fields)
    prefix = "".join(f"{part}." for part in section)
    siblings = [key for key in known if key.startswith(prefix)]
    elsewhere = [key for key in known if key.rpartition(".")[2] == name]
    moved = f"; did you mean {elsewhere[0]}?" if elsewhere else ""
    return _nearest(prefix + name, siblings, prefix) or moved


def _nearest(name: str, known: list[str], prefix: str) -> str:
    """The clause that names the known word nearest to ``name``; empty if none is near.

    All of them begin with ``prefix``, which must not make them look more alike than they are.
    """
    words = [word.removeprefix(prefix) for word in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), words, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _contains(data: Mapping[str, Any], loc: tuple[int | str, ...]) -> bool:
    at: object = data
    for part in loc:
        if not isinstance(at, Mapping) or part not in at:
            return False
        at = at[part]
    return True


def _variable(key: str) -> str:
    return ENV_PREFIX + "__".join(_split(key)).replace(".", "_").upper()


def _split(key: str) -> list[str]:
    """The parts of a dotted key; a librdkafka key is one part, dots and all."""
    kafka = "journal.kafka."
    return ["journal", "kafka", key.removeprefix(kafka)] if key.startswith(kafka) else key.split(".")


# Showing


class _Leaf(NamedTuple):
    key: str
    value: object
    is_set: bool


def _leaves(model: BaseModel, prefix: str, is_set: bool = True) -> Iterator[_Leaf]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        key, given = f"{prefix}{name}", is_set and name in model.model_fields_set
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{key}.", given)
        elif key == "journal.kafka" and value:
            yield from (_Leaf(f"{key}.{one}", entry, given) for one, entry in sorted(value.items()))
        else:
            yield _Leaf(key, value, given)


def _shown(key: str, value: object) -> str:
    if key == "redis.url" and isinstance(value, SecretStr):
        from counters.redis import mask_url  # late: reading settings needs no client library

        return mask_url(value.get_secret_value())
    secret = key == "redis.url" or (key.startswith("journal.kafka.") and _SECRET.search(key))
    if secret or (key == "journal.kafka" and value):
        return _HIDDEN
    if value is None:
        return "unset"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict | list):
        return _clipped(json.dumps(value, default=str))
    return _clipped(repr(value) if isinstance(value, str) else str(value))


def _clipped(text: str, width: int = 200) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
