"""The Redis that holds the counters: its scripts, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import numpy as np
from redis.commands.core import Script
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from counters.errors import StoreError
from counters.objects.sketch import REGISTERS, write_blob
from counters.redis import AnyRedis
from journal_client.errors import Unavailable

EMPTY = write_blob(np.zeros(REGISTERS, np.uint8))
"""A dense HyperLogLog of nothing."""

_TRANSIENT = (
    "OOM",
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
)
"""Error codes of a server that cannot write now and may be able to later."""


class Server:
    """One client's way to Redis."""

    def __init__(self, client: AnyRedis) -> None:
        self.client = client
        self._failures = 0

    def script(self, *parts: str, before: str = "") -> Script:
        """The script made of these files, one after the other: what several need is a file of its own.

        Args:
            before: what another room's files define for it.
        """
        folder = files("counters.objects")
        texts = [before, *(folder.joinpath(f"{part}.lua").read_text() for part in parts)]
        return self.client.register_script("\n".join(texts))

    @contextmanager
    def available(self) -> Iterator[None]:
        """Turns what may pass by itself into ``Unavailable``, waiting longer each time (0.5 s to 10 s)."""
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError) as error:
            raise self._unavailable(error) from error
        except ResponseError as error:
            if not str(error).startswith(_TRANSIENT):
                raise StoreError(f"Redis refuses: {str(error).removeprefix('FOREIGN ')}") from error
            raise self._unavailable(error) from error
        else:
            self._failures = 0

    def _unavailable(self, error: RedisError) -> Unavailable:
        if isinstance(error, ReadOnlyError):
            # the primary became a replica: the pool still points at it
            self.client.close()
        self._failures += 1
        return Unavailable(f"Redis: {error}", retry_after=min(10.0, 0.25 * 2.0**self._failures))
