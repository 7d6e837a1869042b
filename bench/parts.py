"""The parts of the comparison: each runs something and answers with rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import redis

from bench import api, sketches, tasks
from bench.race import Contender, Race, install_rival
from bench.table import Row, Target
from bench.topics import KEY_TYPES, Record, filled, key_records, revision_records

BARE = Contender("bare consume(1000) loop", "bare")
DEFAULT = Contender("counters count", "counters")
EQUAL = Contender("counters count, precision 14", "counters", precision=14)
RIVAL = Contender("swh-counters 0.14", "swh-counters", batch=200)
RIVAL_AT_ITS_BEST = Contender("swh-counters 0.14, batches of 1,000", "swh-counters", batch=1_000)

RATE, TIMES, SHARE, MEMORY = "{:,.0f} messages/s", "{:.1f} ×", "{:.1%}", "{:.0f} MiB"

KEY_RECORDS = 1_000_000
REVISION_RECORDS = 100_000


@dataclass(slots=True)
class Bench:
    """Where the parts run, and what they leave behind."""

    brokers: str
    redis_url: str
    rounds: int
    say: Callable[[str], None]
    details: dict[str, object] = field(default_factory=dict)

    def race(
        self, part: str, types: tuple[str, ...], records: Iterator[Record], contenders: list[Contender]
    ) -> Race:
        """Fill topics and let the contenders read them."""
        install_rival()
        race = Race(contenders)
        self.say(f"{part}: writing the topics")
        with filled(self.brokers, types, records) as topics:
            race.run(topics, self.redis_url, self.rounds, self.say)
        self.details[part] = {label: [asdict(run) for run in runs] for label, runs in race.runs.items()}
        return race

    def redis(self) -> redis.Redis:
        """A client, to be closed by the caller."""
        return redis.Redis.from_url(self.redis_url)


def key_only(bench: Bench) -> Iterator[Row]:
    """Topics of which nothing but the keys is looked at."""
    contenders = [BARE, DEFAULT, EQUAL, RIVAL, RIVAL_AT_ITS_BEST]
    race = bench.race("key-only", KEY_TYPES, key_records(KEY_RECORDS), contenders)
    yield from _rates("key-only", race)
    for ours in (DEFAULT, EQUAL):
        yield _ratio("key-only", race, ours, BARE, Target(0.70), SHARE)
        yield _ratio("key-only", race, ours, RIVAL, Target(10))
        yield _ratio("key-only", race, ours, RIVAL_AT_ITS_BEST)


def persons(bench: Bench) -> Iterator[Row]:
    """Revisions, whose authors and committers are counted as well."""
    contenders = [BARE, DEFAULT, EQUAL, RIVAL, RIVAL_AT_ITS_BEST]
    race = bench.race("persons", ("revision",), revision_records(REVISION_RECORDS), contenders)
    yield from _rates("persons", race)
    for ours in (DEFAULT, EQUAL):
        yield _ratio("persons", race, ours, BARE, None, SHARE)
        yield _ratio("persons", race, ours, RIVAL, Target(10))
        yield _ratio("persons", race, ours, RIVAL_AT_ITS_BEST)


def keys_sent(bench: Bench) -> Iterator[Row]:
    """Keys that go to Redis per key read."""
    with bench.redis() as client:
        for precision in sketches.PRECISIONS:
            bench.say(f"keys sent: precision {precision}")
            for sent in sketches.keys_sent(client, precision):
                what = f"precision {precision}, {sent.read:,} different keys"
                limit = Target(0.10, at_least=False) if sent.read == 1_000_000 else None
                yield Row("keys sent", what, sent.keys, SHARE, limit)
                yield Row("keys sent", "    registers raised per key read", sent.raised, SHARE)
                yield Row("keys sent", "    bytes sent per key read", sent.size, "{:.2f}")


def accuracy(bench: Bench) -> Iterator[Row]:
    """Errors of counts read from Redis."""
    limits = {14: 0.01, 18: 0.0025}
    with bench.redis() as client:
        for precision in sketches.PRECISIONS:
            bench.say(f"accuracy: precision {precision}")
            limit = limits.get(precision)
            what = f"precision {precision}, {sketches.SETS} sets of {sketches.KEYS_PER_SET:,} keys (rms)"
            target = None if limit is None else Target(limit, at_least=False)
            yield Row("accuracy", what, sketches.error(client, precision), "{:.3%}", target)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "key-only": key_only,
    "persons": persons,
    "keys-sent": keys_sent,
    "accuracy": accuracy,
    "api": lambda bench: api.rows(bench.redis_url, bench.rounds, bench.say),
    "checkpoint": lambda bench: tasks.checkpoint(bench.redis_url, bench.say),
    "backfill": lambda bench: tasks.backfill(bench.redis_url, bench.rounds, bench.say),
    "rebuild": lambda bench: tasks.rebuild(bench.brokers, bench.redis_url, bench.rounds, bench.say),
    "verify": lambda bench: tasks.verify(bench.brokers, bench.redis_url, bench.say),
}

ON_KAFKA = ("key-only", "persons", "rebuild", "verify")


def _rates(part: str, race: Race) -> Iterator[Row]:
    for label in race.runs:
        yield Row(part, label, race.rate(label), RATE)
        yield Row(part, "    processor time", race.cpu(label), "{:.2f} µs/message")
        yield Row(part, "    whole process", race.wall(label), "{:.1f} s")
        target = Target(200, at_least=False) if label == DEFAULT.label else None
        yield Row(part, "    peak memory", race.peak_mib(label), MEMORY, target)


def _ratio(
    part: str, race: Race, ours: Contender, other: Contender, target: Target | None = None, unit: str = TIMES
) -> Row:
    return Row(part, f"{ours.label} / {other.label}", race.ratio(ours.label, other.label), unit, target)
