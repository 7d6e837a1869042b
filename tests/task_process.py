"""``counters`` as a process to which something happens at its n-th batch, see :mod:`tasks`.

    python task_process.py '{"batch": 100, "at": {"before 3": "hold"}}' ARGUMENTS...

``kill``: the process dies. ``hold``: it says so, and waits for a line on standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from tasks import small_batches

from counters.cli import run


def main(accidents: dict[str, Any], arguments: list[str]) -> int:
    """Run the command; its exit code."""

    def happens(moment: str) -> None:
        accident = accidents["at"].get(moment)
        if accident == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif accident == "hold":
            print(f"{moment}, hold", file=sys.stderr, flush=True)
            sys.stdin.readline()

    with small_batches(accidents["batch"], happens):
        return run(arguments)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
