"""Samples of the counts, taken by the server itself: the history where there is no Prometheus.

Keys::

    {counters}:series:<counter>   zset  member "<Unix seconds>:<count>", score the seconds
    {counters}:sampled            set   counters that have such a series
    {counters}:claim:samples      held from one sample to shortly before the next, so that any number of
                                  replicas writes one
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from importlib.resources import files

from redis.exceptions import ResponseError

from counters.answering import answering
from counters.errors import CountersError
from counters.history.series import Series, thin
from counters.redis import AnyRedis

logger = logging.getLogger(__name__)

_NEARLY = 0.75
"""Share of the interval for which the claim lasts: less than all, so that a clock tick loses no sample."""

_REMOVE = 1_000
"""Members that one command removes."""

Counts = Callable[[], Mapping[str, float]]
"""What is to be sampled now, by counter: only counts that can be believed."""


class Sampler:
    """Writes the counts to Redis every ``every`` seconds."""

    def __init__(self, client: AnyRedis, prefix: str, counts: Counts, every: float) -> None:
        self._tag = f"{{{prefix}}}"
        self._counts = counts
        self._every = every
        self._script = client.register_script(files("counters.history").joinpath("sample.lua").read_text())

    def sample(self) -> bool:
        """Write one sample of each count; False if there is nothing to write, or another replica just did.

        Raises:
            CountersError: the counts cannot be read or written.
        """
        counts = {name: value for name, value in self._counts().items() if math.isfinite(value)}
        if not counts:
            return False
        keys = [f"{self._tag}:claim:samples", f"{self._tag}:sampled"]
        keys += [f"{self._tag}:series:{name}" for name in counts]
        arguments = [str(max(1, round(self._every * _NEARLY * 1000)))]
        for name, value in counts.items():
            arguments += [name, repr(value)]
        with answering(f"{self._tag}:series"):
            return bool(self._script(keys=keys, args=arguments))

    def run(self, stop: threading.Event) -> None:
        """Sample until ``stop`` is set; what goes wrong is logged, and tried again at the next interval."""
        failing = False
        while not stop.is_set():
            try:
                self.sample()
                failing = False
            except CountersError as error:
                if not failing:
                    logger.warning("no sample of the counts: %s", error)
                failing = True
            except Exception:
                logger.exception("sampling the counts failed")
            stop.wait(self._every)


class SampleSource:
    """The history as the samples tell it."""

    name = "samples"
    thins = True

    def __init__(self, client: AnyRedis, prefix: str) -> None:
        self._client = client
        self._tag = f"{{{prefix}}}"

    def fetch(self, now: int) -> dict[str, Series]:
        """All samples by counter, empty where there are none yet; those too dense for their age at ``now``
        (Unix seconds) are removed from Redis.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with answering(f"{self._tag}:sampled"):
            members: set[bytes] = self._client.smembers(f"{self._tag}:sampled")  # type: ignore[assignment]
            names = sorted(name.decode() for name in members)
            return {name: self._thinned(name, now) for name in names}

    def _thinned(self, name: str, now: int) -> Series:
        key = f"{self._tag}:series:{name}"
        try:
            members: list[bytes] = self._client.zrange(key, 0, -1)  # type: ignore[assignment]
        except ResponseError as error:
            logger.warning("%s holds no samples: %s; delete it", key, error)
            return Series.of()
        samples = Series.of([_point(member) for member in members])
        kept = thin(samples, now)
        if len(kept) < len(samples):
            stay = set(kept.times.tolist())
            gone = [
                member for member, at in zip(members, samples.times.tolist(), strict=True) if at not in stay
            ]
            for first in range(0, len(gone), _REMOVE):
                self._client.zrem(key, *gone[first : first + _REMOVE])
        return kept


def _point(member: bytes) -> tuple[int, float]:
    at, _, value = member.partition(b":")
    return int(at), float(value)
