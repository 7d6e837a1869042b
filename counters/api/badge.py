"""``/api/v1/badge/<type>.svg``: one number as a small picture, for READMEs and other sites."""

from __future__ import annotations

from html import escape
from string import Template

from counters.objects.spec import Count

HEIGHT, PADDING, GLYPH = 20, 7, 6.6
"""Pixels. A glyph is as wide as an average one of 11 px Verdana; ``textLength`` makes the text fit whatever
font is there."""

FIELD, NUMBER, UNKNOWN = "#3f3a33", "#8c2f1f", "#6d6457"
"""Behind the label, a number, and one that is missing or in doubt. White on each has a contrast above
5 : 1."""

SVG = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" width="$width" height="$height" role="img" aria-label="$title">
<title>$title</title>
<clipPath id="r"><rect width="$width" height="$height" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="$left" height="$height" fill="$field"/>\
<rect x="$left" width="$right" height="$height" fill="$colour"/></g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="$padding" y="14" textLength="$label_length">$label</text>
<text x="$value_x" y="14" textLength="$value_length">$value</text>
</g>
</svg>
""")

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


def badge(count: Count, label: str | None = None, *, stale: bool = False) -> bytes:
    """The picture of ``count``, under its name or ``label``; grey, and saying why, if it is in doubt.

    ``stale``: it could not be read again when it should have been.
    """
    label = count.name.replace("_", " ") if label is None else label
    label = "".join(one if one.isprintable() else " " for one in label)  # XML allows no control characters
    doubt = "stale" if stale else "suspect" if count.suspect else ""
    colour = UNKNOWN if doubt or count.value is None else NUMBER
    if count.value is None:
        value, title = "unknown", f"{label}: unknown"
    else:
        error = round(count.value * count.standard_error)
        value, title = short(count.value), f"{label}: {count.value:,} ± {error:,}"
    if doubt:
        value, title = f"{value} {doubt}", f"{title} ({doubt}, as of {count.as_of:%Y-%m-%d %H:%M} UTC)"
    label_length, value_length = round(len(label) * GLYPH), round(len(value) * GLYPH)
    left, right = label_length + 2 * PADDING, value_length + 2 * PADDING
    return SVG.substitute(
        width=left + right,
        height=HEIGHT,
        left=left,
        right=right,
        padding=PADDING,
        field=FIELD,
        colour=colour,
        title=escape(title),
        label=escape(label),
        label_length=label_length,
        value=value,
        value_x=left + PADDING,
        value_length=value_length,
    ).encode()


def short(number: int) -> str:
    """Three significant digits and a unit: ``27.5B``; exact below a thousand."""
    for size, unit in _UNITS:
        # 999,500 is rounded up to the next unit, not to "1000k".
        if number >= size * 0.9995:
            shown = number / size
            digits = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
            return f"{shown:.{digits}f}{unit}"
    return str(number)
