"""The one place where Redis clients are made."""

from __future__ import annotations
