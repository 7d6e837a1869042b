"""``python -m counters``."""

from __future__ import annotations

from counters.cli import main

if __name__ == "__main__":
    main()
