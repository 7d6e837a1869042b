"""The embedded broker, and that no server outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from journal_client.embedded import EmbeddedKafka, mock_by_client
from journal_client.leash import LeashedProcess
from journal_client.pytest_plugin import wait_for
from tests.servers.kafka import RealKafka


def write(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n in range(count):
        producer.produce(topic, key=b"%d" % n)
    assert producer.flush(10) == 0


def read_keys(bootstrap: str, topic: str, count: int) -> set[bytes | None]:
    keys: set[bytes | None] = set()
    config = {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    with closing(Consumer(config | {"session.timeout.ms": 6000})) as consumer:
        consumer.subscribe([topic])
        wait_for(lambda: keys.update(m.key() for m in consumer.consume(100, 0.1)) or len(keys) >= count)
    return keys


def answers(bootstrap: str) -> bool:
    try:
        Producer({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=0.5)
    except KafkaException:
        return False
    return True


def test_a_group_reads_what_was_written() -> None:
    with EmbeddedKafka() as kafka:
        write(kafka.bootstrap_servers, "a.topic", 50)
        assert read_keys(kafka.bootstrap_servers, "a.topic", 50) == {b"%d" % n for n in range(50)}


def test_the_fallback_without_the_c_interface_is_a_broker_too() -> None:
    address, cluster = mock_by_client()
    write(address, "a.topic", 1)
    del cluster


def test_a_killed_broker_is_gone_at_once() -> None:
    with EmbeddedKafka() as kafka:
        pid = kafka.pid
        kafka.kill()
        assert not psutil.pid_exists(pid)
        assert not answers(kafka.bootstrap_servers)


def test_a_paused_broker_answers_again_after_resume() -> None:
    with EmbeddedKafka() as kafka:
        kafka.pause()
        assert not answers(kafka.bootstrap_servers)
        kafka.resume()
        assert answers(kafka.bootstrap_servers)


def test_a_paused_broker_can_be_closed() -> None:
    kafka = EmbeddedKafka().start()
    kafka.pause()
    pid = kafka.pid
    kafka.close()
    assert not psutil.pid_exists(pid)


def test_closing_leaves_no_process() -> None:
    before = set(psutil.Process().children(recursive=True))
    with EmbeddedKafka():
        assert len(set(psutil.Process().children(recursive=True)) - before) == 2
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_broker_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        EmbeddedKafka().kill()


def test_a_real_broker_keeps_its_data_over_a_crash(own_kafka: RealKafka) -> None:
    write(own_kafka.bootstrap_servers, "a.topic", 50)
    own_kafka.kill()
    assert not answers(own_kafka.bootstrap_servers)
    own_kafka.restart()
    assert len(read_keys(own_kafka.bootstrap_servers, "a.topic", 50)) == 50


PARENT = """
import sys, time
from pathlib import Path
from counters.embedded import EmbeddedRedis
from journal_client.embedded import EmbeddedKafka
kafka, redis = EmbeddedKafka().start(), EmbeddedRedis(Path(sys.argv[1])).start()
if sys.argv[2] == "paused":
    kafka.pause()
    redis.pause()
print(kafka.pid, redis.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_servers_end_with_a_parent_killed_by_sigkill(state: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "data"), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(psutil.pid_exists, pids))
        parent.kill()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), message="the servers outlive their parent")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_a_server_ends_with_its_supervisor_killed_by_sigkill() -> None:
    process = LeashedProcess([sys.executable, "-c", "import time; time.sleep(300)"])
    supervisor = psutil.Process(process.pid).ppid()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(process.pid), message="the server outlives its supervisor")
    process.close()


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    process = LeashedProcess([sys.executable, "-c", f"{stubborn}; time.sleep(300)"], grace=0.2)
    assert process.read_line(10.0) == "up"
    process.close()
    assert not psutil.pid_exists(process.pid)


def test_a_program_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(OSError, match=r"cannot start /nowhere/server: No such file"):
        LeashedProcess(["/nowhere/server"])
