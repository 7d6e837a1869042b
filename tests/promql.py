"""What a PromQL expression asks for: the metrics and the labels it names. ``promtool`` judges the grammar."""

from __future__ import annotations

import re

VARIABLES = {"$__rate_interval": "5m", "$__range": "6h"}
"""Intervals that Grafana fills in."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_DURATION = re.compile(r"\[[^\]]*\]|\boffset\s+\w+|\b[0-9.]+(?:e[0-9]+)?\w*")
_NAME = re.compile(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "by", "without", "on", "ignoring"}


def filled_in(expression: str) -> str:
    """The expression as Grafana sends it: any value for a variable of the dashboard is as good as another."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return re.sub(r"\$\w+", "x", expression)


def names(expression: str) -> tuple[set[str], set[str]]:
    """The metrics that ``expression`` selects, and the labels it matches or groups by."""
    rest = _STRING.sub("", filled_in(expression))
    labels = {
        re.split(r"[=!]", part)[0].strip()
        for found in (*_GROUPING.finditer(rest), *_MATCHERS.finditer(rest))
        for part in found[1].split(",")
    }
    for pattern in (_GROUPING, _MATCHERS, _DURATION):
        rest = pattern.sub(" ", rest)
    return set(_NAME.findall(rest)) - _WORDS, labels - {""}
