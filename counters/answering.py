"""What Redis refuses or fails to do, as errors for an operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError, ResponseError

from counters.errors import StoreError, StoreUnavailable


@contextmanager
def answering(key: str) -> Iterator[None]:
    """For the length of a call that is about ``key``.

    Raises:
        StoreError: the key holds something else.
        StoreUnavailable: Redis does not answer, or refuses.
    """
    try:
        yield
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise StoreError(
                f"{key} in Redis holds something else: delete it, or change redis.prefix"
            ) from error
        raise StoreUnavailable(f"Redis refuses {key}: {error}; check redis.url") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error}; check redis.url") from error
