"""Ending on time, in processes of their own since their end is what is looked at."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from journal_client.pytest_plugin import wait_for
from journal_client.shutdown import Stop

HANGING = """
import time
from journal_client.shutdown import Stop
stop = Stop(0.3)
def hanging_close():
    time.sleep(60)
stop.request()
hanging_close()
"""

LISTENING = """
import time
from journal_client.shutdown import Stop
stop = Stop(50)
with stop.on_signals():
    print("listening", flush=True)
    while not stop:
        time.sleep(0.01)
    print("asked to end", flush=True)
    time.sleep(60)
"""


def test_a_close_that_hangs_is_ended_with_code_1_and_the_stacks() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=30)
    assert time.monotonic() - began < 15
    assert ended.returncode == 1
    assert "closing took longer than journal.shutdown_timeout (0.3 s)" in ended.stderr
    assert "hanging_close" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LISTENING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        process.send_signal(number)
        assert process.stdout.readline() == "asked to end\n"
        process.send_signal(number)
        assert process.wait(timeout=10) == 128 + number


def test_after_everything_is_closed_the_watchdog_rests() -> None:
    stop = Stop(60)
    before = threading.active_count()
    stop.request()
    assert threading.active_count() == before + 1
    stop.done()
    wait_for(lambda: threading.active_count() == before, message="the watchdog still counts")


def test_asking_twice_starts_one_watchdog() -> None:
    stop = Stop(60)
    before = threading.active_count()
    stop.request()
    stop.request()
    assert threading.active_count() == before + 1
    stop.done()


def test_a_stop_nobody_asked_for_is_false() -> None:
    stop = Stop(60)
    assert not stop
    stop.done()
    assert not stop


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Stop(60).on_signals():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) != before
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
