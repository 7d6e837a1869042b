"""What the client library is told, and what of its log is let through."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from journal_client.config import OWNED_BY_THE_LOOP, JournalSettings
from journal_client.librdkafka import RateLimit, consumer_config, is_incremental, plain, producer_config


@pytest.mark.parametrize(
    ("value", "told"), [(True, "true"), (False, "false"), (0, 0), (1, 1), ("False", "False"), (None, None)]
)
def test_booleans_are_told_as_words_and_nothing_else_is_changed(value: object, told: object) -> None:
    result = plain({"key": value})["key"]
    assert result == told
    assert type(result) is type(told)


@pytest.mark.parametrize("key", sorted(OWNED_BY_THE_LOOP))
def test_a_key_that_the_loop_owns_is_refused_with_its_name(key: str) -> None:
    with pytest.raises(ValidationError, match=rf"kafka must not hold {key}"):
        JournalSettings(kafka={key: "mine"})


def test_the_loop_decides_every_position_itself() -> None:
    config = consumer_config(JournalSettings(kafka={"fetch.min.bytes": 7}))
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "error"


def test_any_other_key_reaches_the_library_and_wins_over_a_default() -> None:
    config = consumer_config(
        JournalSettings(kafka={"queued.min.messages": 7, "enable.ssl.certificate.verification": False})
    )
    assert config["queued.min.messages"] == 7
    assert config["enable.ssl.certificate.verification"] == "false"


def test_a_static_member_says_its_name_and_others_say_none() -> None:
    assert consumer_config(JournalSettings(group_instance_id="pod-0"))["group.instance.id"] == "pod-0"
    assert "group.instance.id" not in consumer_config(JournalSettings())


@pytest.mark.parametrize(
    ("settings", "incremental"),
    [
        ({}, False),
        ({"kafka": {"partition.assignment.strategy": "roundrobin"}}, False),
        ({"kafka": {"partition.assignment.strategy": "cooperative-sticky"}}, True),
        ({"group_protocol": "consumer"}, True),
    ],
)
def test_cooperative_groups_are_recognised(settings: dict[str, object], incremental: bool) -> None:
    assert is_incremental(consumer_config(JournalSettings.model_validate(settings))) is incremental


def test_no_assignment_strategy_is_named_when_the_broker_decides() -> None:
    config = consumer_config(JournalSettings.model_validate({"group_protocol": "consumer"}))
    assert "partition.assignment.strategy" not in config


def test_a_producer_beside_the_reader_shares_its_security_and_not_its_session() -> None:
    kafka = {"sasl.username": "reader", "session.timeout.ms": 6000, "fetch.min.bytes": 1}
    config = producer_config(JournalSettings(brokers="broker:9092", kafka=kafka))
    assert config["sasl.username"] == "reader"
    assert config["bootstrap.servers"] == "broker:9092"
    assert not {"session.timeout.ms", "fetch.min.bytes", "group.id"} & config.keys()


@dataclass
class Log:
    """Lines that a rate limit of ten seconds let through, on a clock of its own."""

    now: float = 0.0
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._limit = RateLimit(10.0, clock=lambda: self.now)

    def write(self, text: str, *args: object) -> None:
        record = logging.LogRecord("journal", logging.WARNING, __file__, 1, text, args, None)
        if self._limit.filter(record):
            self.lines.append(record.getMessage())


def test_a_repeated_line_is_held_back() -> None:
    log = Log()
    for _ in range(3):
        log.write("FAIL [broker]: %s", "refused")
    assert log.lines == ["FAIL [broker]: refused"]


def test_what_was_held_back_is_counted_in_the_next_line() -> None:
    log = Log()
    for _ in range(3):
        log.write("FAIL 100%% of %d", 5)
    log.now = 10.0
    log.write("FAIL 100%% of %d", 6)
    assert log.lines[1:] == ["FAIL 100% of 6 (2 more like this suppressed)"]


def test_counting_starts_anew_after_each_line() -> None:
    log = Log()
    for moment in (0.0, 1.0, 10.0, 20.0):
        log.now = moment
        log.write("FAIL x")
    assert log.lines == ["FAIL x", "FAIL x (1 more like this suppressed)", "FAIL x"]


def test_lines_of_another_kind_are_not_held_back() -> None:
    log = Log()
    log.write("FAIL x")
    log.write("MAXPOLL x")
    assert log.lines == ["FAIL x", "MAXPOLL x"]
