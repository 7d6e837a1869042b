"""Exact counts in a process of its own: how much memory they need, and what a kill leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from counters.objects.exact import Spool
from counters.objects.sketch import hash_keys

BATCH = 50_000

FILL = f"""
import json, sys
from pathlib import Path
from counters.objects.exact import Spool
from counters.objects.sketch import hash_keys

def fill(directory, batches):
    spool = Spool.open(Path(directory), max_bucket_bytes=8 << 20)
    for batch in range(batches):
        keys = [number.to_bytes(20, "big") for number in range(batch * {BATCH}, (batch + 1) * {BATCH})]
        spool.add(keys, hash_keys(keys))
        yield spool
"""

COUNT = """
for spool in fill(sys.argv[1], 60):
    pass
peak = lambda: next(int(line.split()[1]) for line in Path("/proc/self/status").open() if "VmHWM" in line)
print(json.dumps({"count": spool.count(), "read": spool.read, "peak_kib": peak()}))
"""

ADD_WITHOUT_END = """
for spool in fill(sys.argv[1], 1_000_000):
    print(json.dumps(spool.token), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of its memory from /proc")
def test_three_million_keys_are_counted_in_less_memory_than_a_set_of_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL + COUNT, str(tmp_path)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (result["count"], result["read"]) == (60 * BATCH, 60 * BATCH)
    # A set of them takes 300 MiB beside Python and numpy (50 MiB).
    assert result["peak_kib"] < 150 * 1024


def test_a_spool_whose_process_was_killed_goes_on_where_its_token_says(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL + ADD_WITHOUT_END, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tokens = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.kill()
    spool = Spool.open(tmp_path, tokens[2])
    assert spool.read == 3 * BATCH
    again = [number.to_bytes(20, "big") for number in range(3 * BATCH - 10, 3 * BATCH + 10)]
    spool.add(again, hash_keys(again))
    assert (spool.read, spool.count()) == (3 * BATCH + 20, 3 * BATCH + 10)
    spool.remove()
    assert not list(tmp_path.iterdir())
