"""One reader of the journal in a process of its own, with a stopwatch.

Run as a script by the Python that has the reader installed (swh-counters lives in another environment), so it
imports nothing of this package::

    python bench/contender.py NAME '{"brokers": …, "prefix": …, "group": …, "records": …, …}'

The stopwatch sits where all readers are alike, in the consumer: it starts when the first records come out,
and is read when records come out and after each commit. What lies before (interpreter, imports, joining the
group) and after (leaving it) is in the wall time that the parent measures. It costs a few clock readings per
fetch.

The last line on standard output is a JSON object: ``records`` read, ``seconds`` and ``cpu`` seconds between
first and last reading, ``peak_kib`` resident memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

Job = dict[str, Any]


class Stopwatch(confluent_kafka.Consumer):
    """A consumer that notes when records came and when offsets were committed."""

    records = 0
    started = (0.0, 0.0)
    stopped = (0.0, 0.0)

    def consume(self, *args: Any, **kwargs: Any) -> list[confluent_kafka.Message]:
        messages = super().consume(*args, **kwargs)
        if messages:
            Stopwatch.stopped = _clocks()
            if not Stopwatch.records:
                Stopwatch.started = Stopwatch.stopped
            Stopwatch.records += len(messages)
        return messages

    def commit(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().commit(*args, **kwargs)
        Stopwatch.stopped = _clocks()
        return answer


def _clocks() -> tuple[float, float]:
    """Seconds of time, and of all this process's threads on a processor."""
    return time.perf_counter(), time.process_time()


def bare(job: Job) -> None:
    """Nothing but ``consume(1000)``, fetching as ``counters count`` does: what Python can reach at most."""
    from journal_client.librdkafka import CONSUMER_DEFAULTS

    consumer = Stopwatch(
        {
            **CONSUMER_DEFAULTS,
            "bootstrap.servers": job["brokers"],
            "group.id": job["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([f"{job['prefix']}.{name}" for name in job["types"]])
    while Stopwatch.records < job["records"]:
        consumer.consume(1000, 1.0)
    consumer.close()


def counters(job: Job) -> None:
    """``counters count --stop-at-end``, through the command line."""
    import journal_client.librdkafka
    from counters.cli import run

    journal_client.librdkafka.Consumer = Stopwatch  # type: ignore[attr-defined]
    settings = {
        "journal": {
            "brokers": job["brokers"],
            "group_id": job["group"],
            "prefix": job["prefix"],
            "object_types": job["types"],
        },
        "redis": {"url": job["redis"]},
        "objects": {"precision": job["precision"]},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(settings, file)  # JSON is YAML
        file.flush()
        code = run(["--config", file.name, "--log-level", "warning", "count", "--stop-at-end"])
    if code:
        sys.exit(code)


def swh_counters(job: Job) -> None:
    """The client of swh-counters, as its own command line makes it."""
    import swh.journal.client  # type: ignore[import-not-found]
    from swh.counters import get_counters  # type: ignore[import-not-found]
    from swh.counters.journal_client import CountersJournalClient  # type: ignore[import-not-found]

    swh.journal.client.Consumer = Stopwatch
    client = CountersJournalClient(
        counters=get_counters("redis", host=job["redis"].split("/")[2]),
        brokers=[job["brokers"]],
        group_id=job["group"],
        prefix=job["prefix"],
        object_types=job["types"],
        stop_after_objects=job["records"],
        batch_size=job["batch"],
    )
    client.process_messages()
    client.close()


CONTENDERS: dict[str, Callable[[Job], None]] = {
    "bare": bare,
    "counters": counters,
    "swh-counters": swh_counters,
}


def peak_kib() -> int:
    """The most memory this process ever had resident, in KiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    name, job = sys.argv[1:]
    CONTENDERS[name](json.loads(job))
    seconds, cpu = (stop - start for start, stop in zip(Stopwatch.started, Stopwatch.stopped, strict=True))
    result = {"records": Stopwatch.records, "seconds": seconds, "cpu": cpu, "peak_kib": peak_kib()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
