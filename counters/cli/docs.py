"""``python -m counters.cli.docs [--check]``: docs/configuration.md from the docstrings of the settings."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from counters.config import Settings

TARGET = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

INTRODUCTION = """\
# Settings

<!-- Generated from the docstrings in counters/config.py and journal_client/config.py by
     `python -m counters.cli.docs`. -->

Settings are read from one YAML file, named by `--config` or `COUNTERS_CONFIG`, and from the environment,
which wins: `journal.batch.max_messages` is `COUNTERS_JOURNAL__BATCH__MAX_MESSAGES`. Lists and mappings are
written as JSON there. Without either, the defaults below hold. A key that does not exist, a value of the
wrong kind, and two settings that contradict each other end the program with one line and exit code 2.

`counters check` shows the settings in effect, where each comes from, and what they lead to. Passwords are
never shown.

```yaml
journal:
  brokers: kafka1:9092,kafka2:9092
  object_types: [content, directory, revision]
  kafka:
    security.protocol: SASL_SSL
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: counters
redis:
  url: redis://redis:6379/0
```

The password belongs into the environment: `COUNTERS_JOURNAL__KAFKA__SASL_PASSWORD` sets `sasl.password` (in
names of librdkafka's keys `_` stands for `.`).

A settings file of swh-counters is understood as it is: `counters.host` becomes `redis.url`, the flat keys
of its Redis are adopted (`objects.layout: legacy`), and what `journal` and `history` hold is sorted into
the settings below.

Besides settings, three variables stand for options of the command line: `COUNTERS_CONFIG`,
`COUNTERS_LOG_LEVEL` (`debug`, `info`, `warning`, `error`) and `COUNTERS_LOG_FORMAT` (`text`, `json`).
"""


def reference() -> str:
    """The whole page, as Markdown."""
    return INTRODUCTION + "".join(_section(Settings, ""))


def _section(model: type[BaseModel], prefix: str) -> Iterator[str]:
    plain = {name: field for name, field in model.model_fields.items() if not _is_section(field)}
    if plain:
        yield "\n| setting | value | default | meaning |\n|---|---|---|---|\n"
    for name, field in plain.items():
        cells = (f"`{prefix}{name}`", _kind(field), _default(field), _prose(field))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
    for name, field in model.model_fields.items():
        if _is_section(field):
            yield f"\n{'##' if not prefix else '###'} {prefix}{name}\n\n{_prose(field)}\n"
            yield from _section(_model(field), f"{prefix}{name}.")


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _model(field: FieldInfo) -> type[BaseModel]:
    assert isinstance(field.annotation, type)
    assert issubclass(field.annotation, BaseModel)
    return field.annotation


def _prose(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("``", "`")


def _kind(field: FieldInfo) -> str:
    kind = _type(field.annotation)
    for bound in field.metadata:
        match bound:
            case Ge(ge=limit):
                kind += f", from {limit:,}"
            case Gt(gt=limit):
                kind += f", above {limit:,}"
            case Le(le=limit) | Lt(lt=limit):
                kind += f", up to {limit:,}"
    return kind


def _type(annotation: Any) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join("unset" if one is type(None) else _type(one) for one in arguments)
    if get_origin(annotation) is list:
        return f"list of {_type(arguments[0])}s"
    if get_origin(annotation) is dict:
        return "mapping"
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    names = {int: "whole number", float: "number", bool: "`true` or `false`", SecretStr: "text (secret)"}
    return names.get(annotation, "path" if annotation is Path else "text")


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None:
        return "unset"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the file is stale.")
def main(check: bool) -> None:
    """Write docs/configuration.md."""
    text = reference()
    if not check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        click.echo("docs/configuration.md is stale: run `python -m counters.cli.docs`", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
