"""One member of the consumer group, put together as ``counters count`` does it, with accidents on the way.

    python worker_process.py SETTINGS.json

The real handler is wrapped, nothing else: what a test sees is what the loop and the store really do. At its
end the process prints its books as one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from counters.config import ObjectsSettings, RedisSettings
from counters.objects.metrics import WorkerMetrics
from counters.objects.store import CounterStore
from counters.objects.worker import CountingHandler
from counters.redis import connect
from journal_client import client as loop
from journal_client.batch import Batch
from journal_client.config import JournalSettings

logger = logging.getLogger("accident")

loop.CHECK_VIEW = 1.0  # as it is, only more often: tests wait for it


class AccidentalHandler(CountingHandler):
    """The real handler; something happens before or after its n-th batch.

    ``accidents`` maps ``"before 3"`` or ``"after 3"`` to what happens: ``kill`` (the process dies),
    ``freeze`` (it stops until it gets SIGCONT), ``hold`` (the loop stands still until a line arrives on
    standard input; the client library's threads go on). ``pace`` seconds pass before every batch, so that
    there is a load to disturb.
    """

    accidents: Mapping[str, str]
    pace: float
    batches = 0

    def handle(self, batch: Batch) -> None:
        self.batches += 1
        time.sleep(self.pace)
        self._happens(f"before {self.batches}")
        super().handle(batch)
        self._happens(f"after {self.batches}")

    def _happens(self, moment: str) -> None:
        accident = self.accidents.get(moment)
        if accident is None:
            return
        logger.info("%s, %s", moment, accident)
        if accident == "hold":
            sys.stdin.readline()
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[accident])


def main(settings: dict[str, Any]) -> None:
    """Run until a signal comes, then print the books."""
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    registry = CollectorRegistry()
    journal = JournalSettings.model_validate(settings["journal"])
    redis = RedisSettings.model_validate(settings["redis"])
    store = CounterStore(connect(redis), redis.prefix, journal.group_id)
    objects = ObjectsSettings.model_validate(settings["objects"])
    handler = AccidentalHandler(store, objects, journal.prefix, WorkerMetrics(registry))
    handler.accidents = settings["accidents"]
    handler.pace = settings["pace"]
    client = loop.JournalClient(journal, handler, registry=registry)
    with client.stop.on_signals():
        ledger = client.run()
    print(json.dumps({"topics": ledger.summary(), "imbalance": ledger.imbalance({})}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
