"""One table for people, one JSON file for comparisons."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure has to reach: at least, or at most, ``limit`` (in the unit of the figure)."""

    limit: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``unit`` is a format: ``{:,.0f} messages/s``."""

    part: str
    what: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def missed(self) -> bool:
        """Whether there is a target and it is not met."""
        return self.target is not None and not self.target.met(self.value)

    @property
    def verdict(self) -> str:
        """The target and whether it is met, for people."""
        if self.target is None:
            return ""
        sign = "≥" if self.target.at_least else "≤"
        met = "MISSED" if self.missed else "met"
        return f"{sign} {self.unit.format(self.target.limit)}  {met}"


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table("part", "figure", "value", "target", title=machine())
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.part != row.part:
            table.add_section()
        style = "bold red" if row.missed else None
        table.add_row(row.part, row.what, row.unit.format(row.value), row.verdict, style=style)
    # a file or a pipe has no width of its own
    Console(width=None if Console().is_terminal else 120).print(table)


def save(rows: Sequence[Row], details: object) -> Path:
    """Write rows and single runs under ``bench/results/``, named by the time (UTC)."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    content = {"machine": machine(), "rows": [asdict(row) for row in rows], "runs": details}
    path.write_text(json.dumps(content, indent=1))
    return path


def machine() -> str:
    """What the figures were measured on."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}"
