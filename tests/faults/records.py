"""A journal to read in spite of everything, and what an undisturbed reader would have counted."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from random import Random

import msgspec
import numpy as np
from redis import Redis

from counters.errors import SketchError
from counters.objects.sketch import REGISTERS, Registers, hash_keys, locate, read_blob
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for
from journal_client.serialization import encode_value
from journal_client.writer import JournalWriter

PRECISION = 16


class Records:
    """Writes records, many keys more than once, and keeps the account of what it wrote.

    Attributes:
        keys: for each counter, the different keys it must have counted.
        messages: for each object type, the records written that count.
    """

    def __init__(self, writer: JournalWriter, prefix: str, group: str) -> None:
        self._writer = writer
        self._prefix = prefix
        self._group = group
        self._random = Random(1)
        self.keys: dict[str, set[bytes]] = defaultdict(set)
        self.messages: Counter[str] = Counter()

    def write(self, count: int) -> None:
        """Write ``count`` records, three of four to ``content``, the others to ``revision``."""
        for _ in range(count):
            if self._random.random() < 0.75:
                self.put("content", _identity(self._random.randrange(20_000)), b"\x80")
            else:
                number = self._random.randrange(5_000)
                author, committer = (
                    b"Person %d <%d@example.org>" % (n, n) for n in (number // 3, number // 7)
                )
                self.keys["person"] |= {author, committer}
                value = {"author": {"fullname": author}, "committer": {"fullname": committer}, "date": number}
                self.put("revision", _identity(number), encode_value(value))
        self._writer.flush()

    def put(self, object_type: str, key: bytes, value: bytes | None) -> None:
        """Queue one record that counts."""
        self._writer.write(object_type, key, value)
        self.keys[object_type].add(key)
        self.messages[object_type] += 1

    @contextmanager
    def written_all_the_while(self) -> Iterator[None]:
        """Records flow, about 2,000 a second, until the block ends."""
        done = threading.Event()

        def write() -> None:
            while not done.wait(0.05):
                self.write(100)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def counted(self, redis: Redis) -> int:
        """Records that the group has counted so far."""
        return sum(
            int(redis.hget(self.positions_key, self._topic(name)) or 0) for name in list(self.messages)
        )

    def differences(self, redis: Redis) -> list[str]:
        """How the counters in Redis differ from those of an undisturbed run; empty if they do not."""
        found = []
        for object_type, written in self.messages.items():
            counted = int(redis.hget(self.positions_key, self._topic(object_type)) or 0)
            if counted != written:
                found.append(f"{object_type}: {counted} records counted, {written} written")
        registered = {name.decode() for name in redis.hkeys("{counters}:registry")}
        if registered != set(self.keys):
            found.append(f"registered are {sorted(registered)}, not {sorted(self.keys)}")
        return found or [line for name in self.keys for line in self._register_differences(redis, name)]

    def expect_counted(self, redis: Redis, timeout: float = 30.0) -> None:
        """Wait until the counters are those of an undisturbed run."""
        try:
            wait_for(lambda: not self.differences(redis), timeout)
        except AssertionError:
            raise AssertionError(f"after {timeout:g} s: {'; '.join(self.differences(redis))}") from None

    @property
    def positions_key(self) -> str:
        """The hash of positions, and of records counted."""
        return f"{{counters}}:offsets:{self._group}"

    def _topic(self, object_type: str) -> str:
        return f"{self._prefix}.{object_type}"

    def _register_differences(self, redis: Redis, counter: str) -> Iterator[str]:
        strata = CounterSpec(counter, PRECISION).keys("counters")
        expected = _registers(self.keys[counter]).reshape(-1, REGISTERS)
        for key, wanted, blob in zip(strata, expected, redis.mget(strata), strict=True):
            try:
                found = None if blob is None else read_blob(blob)
            except SketchError as error:
                yield f"{key}: {error}"
                continue
            if found is None:
                yield f"{key} is missing"
            elif not np.array_equal(found, wanted):
                yield f"{key}: {np.count_nonzero(found != wanted)} registers differ"


def spec_of(redis: Redis, counter: str) -> CounterSpec:
    """A counter's entry in the registry."""
    return msgspec.json.decode(redis.hget("{counters}:registry", counter) or b"", type=CounterSpec)


def _registers(keys: set[bytes]) -> Registers:
    registers, ranks = locate(hash_keys(list(keys)), PRECISION)
    expected = np.zeros(1 << PRECISION, np.uint8)
    np.maximum.at(expected, registers, ranks)
    return expected


def _identity(number: int) -> bytes:
    return sha1(b"%d" % number).digest()
