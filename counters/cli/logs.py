"""Log records on standard error, as key=value or JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""What is no field of its own; ``color_message`` is the message again, from uvicorn, for terminals."""


class LineFormatter(logging.Formatter):
    """One line per record; what was passed as ``extra`` becomes fields of its own."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(fields, default=str, ensure_ascii=False)
        trace = fields.pop("traceback", None)
        line = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
        return f"{line}\n{trace}" if trace else line


def _quoted(value: object) -> str:
    """The value as one token: quoted and escaped where it could be taken for another field or line."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return json.dumps(text, ensure_ascii=False)


def configure_logging(level: str, form: str) -> None:
    """Send every record from ``level`` up to standard error as ``text`` or ``json`` lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
