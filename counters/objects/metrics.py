"""Every metric of the counting worker: what it means and what to do about it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class WorkerMetrics:
    """The meters of one counting worker, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Keys hashed. Together with keys_sent: the share that had to go to Redis.
        self.keys_read = Counter("counters_keys_read", "Keys hashed.", ["counter"], registry=registry)
        # Keys that could raise a register. A share that rises with a growing counter: mirrors are dropped
        # over and over.
        self.keys_sent = Counter("counters_keys_sent", "Keys sent to Redis.", ["counter"], registry=registry)
        # A counter's key was deleted or evicted. Any: look at maxmemory-policy and at who else writes to this
        # Redis.
        self.vanished = Counter(
            "counters_vanished", "Counters that lost keys.", ["counter"], registry=registry
        )
        # The counter's key holds something that is not a HyperLogLog. Delete it: the counter is then read
        # again.
        self.broken_keys = Counter(
            "counters_broken_keys",
            "Flushes that met a foreign value in a counter's key.",
            ["counter"],
            registry=registry,
        )
