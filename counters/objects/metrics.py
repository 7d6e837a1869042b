"""Every metric of the counting worker: what it means and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter


class WorkerMetrics:
    """The meters of one counting worker, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Keys hashed. Together with keys_sent: the share that had to go to Redis.
        self.keys_read = Counter("counters_keys_read", "Keys hashed.", ["counter"], registry=registry)
        # Keys sent one by one; where too many would raise registers of a stratum, see strata_merged.
        self.keys_sent = Counter("counters_keys_sent", "Keys sent to Redis.", ["counter"], registry=registry)
        # Registers that rose. Per key read it falls as the counter grows; if it rises, mirrors are dropped
        # over and over.
        self.registers_raised = Counter(
            "counters_registers_raised", "Registers that rose.", ["counter"], registry=registry
        )
        # Strata sent as registers because too many keys would have raised them. Falls to nothing as counters
        # grow.
        self.strata_merged = Counter(
            "counters_strata_merged", "Strata sent as registers.", ["counter"], registry=registry
        )
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

    def sent(self, counter: str, raised: int, strata: Sequence[tuple[int, list[bytes] | bytes]]) -> None:
        """Count what one flush sent for ``counter``: per stratum keys, or all its ``raised`` registers at
        once."""
        self.registers_raised.labels(counter).inc(raised)
        keys = [some for _, some in strata if not isinstance(some, bytes)]
        self.keys_sent.labels(counter).inc(sum(map(len, keys)))
        self.strata_merged.labels(counter).inc(len(strata) - len(keys))
