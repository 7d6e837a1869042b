"""An exclusive claim on a piece of work, as a key in Redis that expires."""

from __future__ import annotations

import contextlib
import secrets
from types import TracebackType
from typing import Self

from counters.errors import StoreUnavailable
from counters.answering import answering
from counters.redis import AnyRedis

_RELEASE = """\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


class Claim:
    """Whoever sets the key has the claim until it is released or ``seconds`` are over.

    It may expire under its holder: what the claim protects compares :attr:`token` with the key in the same
    step that writes.
    """

    def __init__(self, client: AnyRedis, key: str, seconds: float) -> None:
        self._client = client
        self._milliseconds = max(1, round(seconds * 1000))
        self._release = client.register_script(_RELEASE)
        self.key = key
        self.token = secrets.token_hex(16)

    def acquire(self) -> bool:
        """Take the claim; False if somebody has it.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with answering(self.key):
            return bool(self._client.set(self.key, self.token, nx=True, px=self._milliseconds))

    def release(self) -> None:
        """Give the claim back; does nothing to the claim of another.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with answering(self.key):
            self._release(keys=[self.key], args=[self.token])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(StoreUnavailable):  # it expires
            self.release()
