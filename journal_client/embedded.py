"""A Kafka cluster of one broker for tests and for trying things out, without installing one.

librdkafka, which every reader and writer here is built on, contains a mock cluster that speaks the real
protocol: groups, rebalances, commits, watermarks, transactions. It runs in a child process, so that it can be
killed and frozen like a real broker, and other processes can use it.

Limits of the mock cluster:

- it keeps at most 5 MiB or 100,000 messages per partition, in memory, and forgets the oldest beyond that:
  write no faster than is read (:class:`journal_client.throttle.Throttle`);
- topics come into being when first written to or asked about, with 4 partitions; creating them through the
  admin protocol, look-up by time and retention settings do not work, nor is a static member fenced;
- a rebalance waits for ``session.timeout.ms`` less one second, so set that to a few seconds
  (6000 is the least that a real broker accepts by default);
- once killed, its data is gone.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path
from typing import Self

from journal_client.errors import JournalError
from journal_client.leash import LeashedProcess, LeashedServer

START_TIMEOUT = 30.0
"""Seconds for the child to report its address; a fraction of one unless the machine is overloaded."""


class EmbeddedKafka(LeashedServer):
    """The mock cluster in a child process that ends with this one. Killed, it loses its data."""

    def __init__(self) -> None:
        super().__init__()
        self._address = ""

    def start(self) -> Self:
        """Start the broker and wait for its address.

        Raises:
            JournalError: it did not start.
        """
        process = LeashedProcess([sys.executable, "-m", "journal_client.embedded"])
        self._address = process.read_line(START_TIMEOUT)
        if not self._address:
            process.close()
            raise JournalError(f"the embedded Kafka broker did not start within {START_TIMEOUT:g} s")
        self._process = process
        return self

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients, ``host:port``; the same until :meth:`close`."""
        return self._address


def mock_by_library() -> tuple[str, object]:
    """Start a mock cluster through librdkafka's C interface (``rdkafka_mock.h``).

    The point of going past the Python client is one setting it cannot reach: a group's first member is made
    to wait 3 s for others unless the delay is lowered.

    Returns:
        The address, and an object to keep alive for as long as the cluster is needed.

    Raises:
        OSError, AttributeError: the library is not where the wheel puts it, or is too old.
    """
    library = _librdkafka()
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, text, text, text, size]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, text, size]
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_mock_cluster_bootstraps.restype = text
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    library.rd_kafka_mock_group_initial_rebalance_delay_ms.restype = None
    library.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [pointer, ctypes.c_int32]

    reason = ctypes.create_string_buffer(512)
    configuration = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(configuration, b"log_level", b"0", reason, len(reason))
    producer = library.rd_kafka_new(0, configuration, reason, len(reason))
    cluster = library.rd_kafka_mock_cluster_new(producer, 1) if producer else None
    if not cluster:
        raise OSError(f"librdkafka cannot start a mock cluster: {reason.value.decode()}")
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    return library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), library


def mock_by_client() -> tuple[str, object]:
    """Start a mock cluster through the Python client, wherever its library is. Groups form 3 s later.

    Returns:
        The address, and an object to keep alive for as long as the cluster is needed.
    """
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    brokers = producer.list_topics(timeout=START_TIMEOUT).brokers.values()
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers), producer


def _librdkafka() -> ctypes.CDLL:
    """The very library that the Python client uses: beside the package on Linux, inside it on macOS."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    for folder in (package.with_name("confluent_kafka.libs"), package / ".dylibs"):
        for path in folder.glob("librdkafka*"):
            return ctypes.CDLL(str(path))
    raise OSError("no librdkafka beside the Python client")


def main() -> None:
    """Run a broker until SIGTERM or SIGINT; its address is the one line on standard output."""
    # Blocked before librdkafka starts its threads, which inherit that: else one of them may take the signal,
    # and this one would not wake up.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        address, cluster = mock_by_library()
    except (OSError, AttributeError):
        address, cluster = mock_by_client()
    print(address, flush=True)
    signal.sigwait(ends)
    del cluster


if __name__ == "__main__":
    main()
