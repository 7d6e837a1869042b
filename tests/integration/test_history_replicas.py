"""Any number of servers share one history in Redis: one at a time rebuilds it, and none spoils it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from histories import loaded, points
from published import PREFIX
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from counters.config import HistorySettings
from counters.embedded import EmbeddedRedis
from counters.errors import StoreError, StoreUnavailable
from counters.history.refresh import Background, Outcome, Refresher, Result
from counters.history.series import Series
from counters.history.store import HistoryStore
from journal_client.pytest_plugin import wait_for

KEY = "{counters}:history:default"


@pytest.fixture
def store(redis_client: Redis) -> HistoryStore:
    return HistoryStore(redis_client, PREFIX)


class Paused:
    """A source that waits to be released."""

    name, thins = "paused", False

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.fetches = 0

    def fetch(self, now: int) -> dict[str, Series]:
        self.fetches += 1
        self.entered.set()
        assert self.released.wait(10)
        return {"content": Series.of([(now, 1.0)])}


class Fixed:
    """A source that always has the same."""

    name, thins = "fixed", False

    def __init__(self, value: float = 1.0) -> None:
        self.value, self.fetches = value, 0

    def fetch(self, now: int) -> dict[str, Series]:
        self.fetches += 1
        return {"content": Series.of([(1_700_000_000, self.value)])}


def test_two_refreshes_at_once_do_one(store: HistoryStore) -> None:
    source = Paused()
    outcomes: list[Outcome] = []
    first = Refresher(store, source, HistorySettings())
    thread = threading.Thread(target=lambda: outcomes.append(first.refresh()))
    thread.start()
    assert source.entered.wait(10)
    assert Refresher(store, Fixed(), HistorySettings()).refresh().result is Result.BUSY
    source.released.set()
    thread.join()
    assert (outcomes[0].result, source.fetches) == (Result.REFRESHED, 1)
    assert Refresher(store, Fixed(), HistorySettings()).refresh().result is Result.REFRESHED


def test_a_refresh_that_lost_its_claim_writes_nothing(store: HistoryStore, redis_client: Redis) -> None:
    source = Paused()
    outcomes: list[Outcome] = []
    slow = Refresher(store, source, HistorySettings())
    thread = threading.Thread(target=lambda: outcomes.append(slow.refresh()))
    thread.start()
    assert source.entered.wait(10)
    redis_client.delete("{counters}:claim:history:default")  # as a Redis that was restored has none
    with store.claim() as claim:
        source.released.set()
        thread.join()
        assert (outcomes[0].result, store.load()) == (Result.FAILED, None)
        claim.check()


def test_a_refresh_on_one_server_is_visible_on_another(store: HistoryStore, redis_url: str) -> None:
    Refresher(store, Fixed(), HistorySettings()).refresh()
    with Redis.from_url(redis_url) as other:
        assert points(HistoryStore(other, PREFIX)) == {"content": [(1_700_000_000, 1.0)]}


def test_the_version_changes_with_every_refresh_and_is_cheap(store: HistoryStore) -> None:
    refresher = Refresher(store, Fixed(), HistorySettings())
    refresher.refresh()
    first = loaded(store).version
    assert store.version() == first
    refresher.refresh()
    assert store.version() != first


def test_a_history_that_nobody_refreshes_is_stale(store: HistoryStore, redis_client: Redis) -> None:
    Refresher(store, Fixed(), HistorySettings(refresh_every=60)).refresh()
    version = loaded(store).version
    long_ago = int((time.time() - 600) * 1_000_000)
    redis_client.hset(KEY, "refreshed", long_ago)
    history = loaded(store)
    assert (history.stale, history.problem) == (True, "nothing refreshes it; run counters serve")
    assert history.version != version


def test_refreshers_share_the_work(store: HistoryStore) -> None:
    sources = [Fixed(), Fixed()]
    stop = threading.Event()
    with Background(*(Refresher(store, source, HistorySettings(refresh_every=3600)) for source in sources)):
        wait_for(lambda: store.load() is not None)
        assert not stop.wait(0.1)
    assert sum(source.fetches for source in sources) == 1


def test_who_comes_to_the_claim_too_late_does_not_refresh_again(store: HistoryStore) -> None:
    source = Fixed()
    refresher = Refresher(store, source, HistorySettings(refresh_every=3600))
    assert refresher.refresh(if_due=True).result is Result.REFRESHED
    assert refresher.refresh(if_due=True).result is Result.FRESH
    assert source.fetches == 1


def test_a_refresh_that_is_due_happens_by_itself(store: HistoryStore) -> None:
    source = Fixed()
    with Background(Refresher(store, source, HistorySettings(refresh_every=0.05))):
        wait_for(lambda: source.fetches >= 3)


def test_a_foreign_key_is_one_line(store: HistoryStore, redis_client: Redis) -> None:
    redis_client.set(KEY, "foreign")
    with pytest.raises(StoreError, match=r"holds something else: delete it, or change redis\.prefix"):
        store.load()


def test_a_damaged_history_is_not_overwritten_unless_told(store: HistoryStore, redis_client: Redis) -> None:
    Refresher(store, Fixed(), HistorySettings()).refresh()
    redis_client.hset(KEY, "data", b"\x81\xa1a\x92\xc4\x03abc\xc4\x00")
    with pytest.raises(StoreError, match="--allow-shrink"):
        store.load()
    refresher = Refresher(store, Fixed(), HistorySettings())
    assert refresher.refresh().result is Result.FAILED
    assert redis_client.hget(KEY, "data") == b"\x81\xa1a\x92\xc4\x03abc\xc4\x00"
    assert refresher.refresh(allow_shrink=True).result is Result.REFRESHED


def test_a_redis_that_is_down_is_one_line(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    server.kill()
    with Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as client:
        store = HistoryStore(client, PREFIX)
        for call in (store.load, store.version, Refresher(store, Fixed(), HistorySettings()).refresh):
            with pytest.raises(StoreUnavailable, match=r"Redis does not answer: .*; check redis\.url"):
                call()
