"""A real Apache Kafka of one node, fetched by Maven, for the tests.

    python tests/servers/kafka.py -- COMMAND...

runs COMMAND with ``KAFKA_BOOTSTRAP_SERVERS`` set to a broker that ends with it; a broker already named there
is used instead. Without COMMAND the broker runs until Ctrl-C. Needs Java 17 or newer and Maven on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from journal_client.leash import LeashedProcess, LeashedServer

HERE = Path(__file__).parent
LIB = HERE / "lib"

START_TIMEOUT = 60.0
"""Seconds for the broker to answer; it takes 3 to 5 on an idle machine."""

JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{LIB}/*"]

# A killed broker may come back only after its session has expired, hence the short one.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=true
num.partitions=4
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class RealKafka(LeashedServer):
    """Apache Kafka in a child process that ends with this one; a context manager like ``EmbeddedKafka``.

    Unlike that one it can be killed and started again with its data, on the same port.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0

    def start(self) -> Self:
        """Fetch Kafka if need be, start it with no data, and wait until it answers.

        Raises:
            RuntimeError: it cannot be fetched or does not start; says why.
        """
        install()
        self._scratch = tempfile.TemporaryDirectory(prefix="kafka-")
        folder = Path(self._scratch.name)
        self._port, controller = free_ports(2)
        settings = PROPERTIES.format(broker=self._port, controller=controller, data=folder / "data")
        (folder / "server.properties").write_text(settings)
        storage = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"]
        run([*JAVA, *storage, str(folder / "server.properties")])
        try:
            self._launch()
        except RuntimeError:
            self.close()
            raise
        return self

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients, ``host:port``; the same after :meth:`restart`."""
        return f"127.0.0.1:{self._port}"

    def restart(self) -> None:
        """Start the broker again with its data; stops it first if it runs."""
        self.process.close()
        self._launch()

    def close(self) -> None:
        """End the broker and delete its data."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # nobody needs the data: no reason to wait for an orderly end
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()

    def _launch(self) -> None:
        assert self._scratch is not None
        folder = Path(self._scratch.name)
        log = folder / "kafka.log"
        self._process = LeashedProcess(
            [*JAVA, "kafka.Kafka", str(folder / "server.properties")], log=log, grace=15.0
        )
        deadline = time.monotonic() + START_TIMEOUT
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        while not answers(admin):
            if not self._process.running or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka does not start: {log.read_text(errors='replace')[-2000:]}")


def install() -> None:
    """Fetch Kafka's libraries unless those of the current ``pom.xml`` are there.

    Raises:
        RuntimeError: Java or Maven is missing, or Maven fails.
    """
    stamp = LIB / "pom.xml"
    if stamp.exists() and stamp.read_bytes() == (HERE / "pom.xml").read_bytes():
        return
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        raise RuntimeError(
            f"a real Kafka needs {' and '.join(missing)} on PATH (Debian: default-jre-headless, maven)"
        )
    shutil.rmtree(LIB, ignore_errors=True)
    run(["mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"])
    shutil.copy(HERE / "pom.xml", stamp)


def run(command: list[str]) -> None:
    """Run a command to its end, in silence unless it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with exit code {done.returncode}:\n{done.stdout[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=0.5).brokers)
    except KafkaException:
        return False


def main(arguments: list[str]) -> int:
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if command and os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        return subprocess.call(command)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with RealKafka() as kafka:
            print(f"KAFKA_BOOTSTRAP_SERVERS={kafka.bootstrap_servers}", flush=True)
            if command:
                return subprocess.call(
                    command, env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
                )
            signal.pause()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        print(f"tests/servers/kafka.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
