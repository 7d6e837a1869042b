"""Several serving processes: one port, replaced when they die, gone when the first is gone."""

from __future__ import annotations

import signal

import httpx
import psutil
import pytest
from published import numbered, publish
from redis import Redis
from serving import serve

from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for

CONTENT = CounterSpec("content", precision=14)


@pytest.fixture
def environment(redis_client: Redis, redis_url: str) -> dict[str, str]:
    publish(redis_client, CONTENT, numbered(10))
    return {"COUNTERS_REDIS__URL": redis_url}


def children(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children()}


def answers(address: str, times: int = 20) -> list[int]:
    """Each on a connection of its own, so that every process gets some."""
    return [httpx.get(f"{address}api/v1/counts", timeout=10).status_code for _ in range(times)]


def test_a_process_that_dies_is_replaced_and_no_connection_is_refused(environment: dict[str, str]) -> None:
    with serve("--processes", "2", **environment) as (process, address):
        before = wait_for(lambda: len(found := children(process.pid)) == 2 and found)
        assert answers(address) == [200] * 20
        psutil.Process(min(before)).kill()
        assert answers(address) == [200] * 20
        wait_for(lambda: len(children(process.pid) - before) == 1)
        assert children(process.pid) >= before - {min(before)}


def test_killing_the_first_process_ends_all(environment: dict[str, str]) -> None:
    with serve("--processes", "2", **environment) as (process, address):
        found = wait_for(lambda: len(found := children(process.pid)) == 2 and found)
        assert answers(address) == [200] * 20
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(map(psutil.pid_exists, found)), message="a process stays behind")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_without_a_word(environment: dict[str, str], number: signal.Signals) -> None:
    with serve("--processes", "2", **environment) as (process, address):
        wait_for(lambda: len(children(process.pid)) == 2)
        assert answers(address) == [200] * 20
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in errors) == (0, False)


def test_a_port_in_use_is_refused_also_by_several(environment: dict[str, str]) -> None:
    with serve("--processes", "2", **environment) as (_, address):
        port = address.rstrip("/").rpartition(":")[2]
        with (
            pytest.raises(AssertionError, match="no address"),
            serve("--port", port, "--processes", "2", **environment) as _,
        ):
            pass


def test_settings_that_are_wrong_end_all_with_one_line(environment: dict[str, str]) -> None:
    url = "redis+cluster://127.0.0.1:1"
    with serve("--processes", "2", COUNTERS_REDIS__URL=url) as (process, _):
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "no node of" in errors
    assert "Traceback" not in errors
