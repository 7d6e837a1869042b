"""Writes ``docs/openapi.json``, the description of the API; ``--check`` says whether it is current.

A change of the API is then a difference to look at in review.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from counters.api.app import create_app
from counters.config import Settings
from counters.objects.spec import Count

PATH = Path("docs") / "openapi.json"


class _Nothing:
    def read(self) -> list[Count]:
        return []


def describe() -> str:
    """The description, as committed."""
    description = create_app(Settings(), _Nothing()).openapi()
    return json.dumps(description, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the file, or compare with it; 1 if it is not current."""
    described = describe()
    if arguments != ["--check"]:
        PATH.write_text(described, encoding="utf-8")
        return 0
    if PATH.exists() and PATH.read_text(encoding="utf-8") == described:
        return 0
    print(f"{PATH} is not current; run python -m counters.api.openapi", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
