"""Who may run a task: one at a time, for as long as it lives, and by no clock."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from checkpoint_stores import Place, SqlPlace, place
from databases import Postgresql
from redis import Redis
from runner_process import Runner
from sqlalchemy.event import listen
from sqlalchemy.exc import OperationalError
from tcp_proxy import TcpProxy

from counters import sql as engines
from counters.checkpoints.claim import Claim
from counters.checkpoints.model import NO_POSITION, Advance, AlreadyRunning, ClaimLost, Fence, runner
from counters.checkpoints.postgresql_claim import lock_key
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.checkpoints.sql_store import SqlCheckpoints
from counters.checkpoints.store import Checkpoints
from counters.embedded import EmbeddedRedis
from counters.errors import StoreError
from journal_client.pytest_plugin import wait_for

NAME = "backfill:content"
FAR_FUTURE = 4_102_444_800_000_000
"""Microseconds; what a clock says that is decades ahead."""

FENCED: dict[str, Callable[[Checkpoints, Fence], object]] = {
    "put": lambda store, fence: store.put(NAME, {"row": 9}, {}, "running", fence=fence),
    "advance": lambda store, fence: store.advance(NAME, {"row": 9}, fence=fence),
    "apply": lambda store, fence: store.apply(Advance(NAME, {"row": 9}, fence=fence, runner="late/1", ok=1)),
    "update": lambda store, fence: store.update(NAME, cursor={"row": 9}, fence=fence),
    "heartbeat": lambda store, fence: store.heartbeat(NAME, "late/1", fence=fence),
}


@pytest.fixture
def start_runner(at: Place) -> Iterator[Callable[[], Runner]]:
    """Starts a process at the same place. It ends with the test."""
    with ExitStack() as runners:
        yield lambda: runners.enter_context(closing(Runner(at.url)))


def claim_at_once(store: Checkpoints, deadline: float = 20.0) -> tuple[Claim, float]:
    """The claim, and the seconds until it was free."""
    began = time.monotonic()
    while True:
        try:
            return store.claim(NAME), time.monotonic() - began
        except AlreadyRunning:
            assert time.monotonic() - began < deadline


def test_a_claim_excludes_every_other_also_in_the_same_process(at: Place, store: Checkpoints) -> None:
    with store.claim(NAME, "host/17"):
        for other in (store, at.open()):
            with pytest.raises(AlreadyRunning, match=rf"^{NAME} is already running: host/17\b"):
                other.claim(NAME)


def test_claims_on_other_names_are_free(store: Checkpoints) -> None:
    with store.claim(NAME), store.claim("backfill:revision") as other:
        other.check()


def test_the_holder_is_told_while_there_is_one(at: Place, store: Checkpoints) -> None:
    assert store.holder(NAME) is None
    with store.claim(NAME):
        holder = at.open().holder(NAME)
        assert holder is not None
        assert holder.split()[0] == runner()
    assert store.holder(NAME) is None


def test_looking_for_the_holder_takes_nothing_from_who_claims(at: Place, store: Checkpoints) -> None:
    other = at.open()
    for _ in range(20):
        with store.claim(NAME):
            assert other.holder(NAME)
        assert other.holder(NAME) is None


def test_work_that_raises_gives_the_claim_back(store: Checkpoints) -> None:
    with pytest.raises(ZeroDivisionError), store.claim(NAME):
        raise ZeroDivisionError
    store.claim(NAME).release()


def test_a_claim_that_was_given_back_is_free_and_giving_it_back_again_takes_nothing(
    at: Place, store: Checkpoints
) -> None:
    first = store.claim(NAME)
    first.release()
    with at.open().claim(NAME) as second:
        first.release()
        second.check()
        with pytest.raises(ClaimLost):
            first.check()


def test_every_claim_has_a_higher_number_and_a_token_of_its_own(store: Checkpoints) -> None:
    claims = []
    for _ in range(3):
        with store.claim(NAME) as claim:
            claims.append(claim)
    epochs = [claim.epoch for claim in claims]
    assert epochs == sorted(set(epochs))
    assert len({claim.fence.token for claim in claims}) == 3


def test_a_claim_is_no_matter_of_state_stamps_or_heartbeat(at: Place, store: Checkpoints) -> None:
    store.put(NAME, {"row": 1}, {}, "running")
    store.heartbeat(NAME, "host/17")
    at.change(NAME, updated_at=FAR_FUTURE, heartbeat_at=FAR_FUTURE)
    with store.claim(NAME) as claim:  # somebody seems to run it, and nobody does
        at.change(NAME, updated_at=1, heartbeat_at=1, observed="idle")
        claim.check()
        with pytest.raises(AlreadyRunning):  # the holder seems to be long gone
            at.open().claim(NAME)
        store.advance(NAME, {"row": 2}, fence=claim.fence)


@pytest.mark.parametrize("write", FENCED)
def test_the_holder_writes(store: Checkpoints, write: str) -> None:
    store.put(NAME, {"row": 1}, {}, "idle")
    with store.claim(NAME) as claim:
        FENCED[write](store, claim.fence)


@pytest.mark.parametrize("write", FENCED)
def test_a_former_holder_writes_nothing(at: Place, store: Checkpoints, write: str) -> None:
    store.put(NAME, {"row": 1}, {}, "idle")
    with store.claim(NAME) as former:
        pass
    with at.open().claim(NAME):
        before = store.get(NAME)
        with pytest.raises(ClaimLost, match="went to another runner; nothing was written"):
            FENCED[write](store, former.fence)
        assert store.get(NAME) == before


def test_a_claim_that_was_given_back_writes_nothing_also_while_nobody_has_it(store: Checkpoints) -> None:
    with store.claim(NAME) as former:
        pass
    with pytest.raises(ClaimLost):
        store.advance(NAME, {"row": 9}, fence=former.fence)


def test_a_former_holder_does_not_make_a_row(at: Place, store: Checkpoints) -> None:
    with store.claim(NAME) as former:
        pass
    with at.open().claim(NAME), pytest.raises(ClaimLost):
        store.apply(Advance(NAME, {"row": 9}, fence=former.fence, expected=NO_POSITION))
    assert store.list() == []


def test_a_killed_holder_frees_the_claim_at_once(
    store: Checkpoints, start_runner: Callable[[], Runner]
) -> None:
    holder = start_runner()
    assert holder.ask("claim", NAME) == "claimed"
    with pytest.raises(AlreadyRunning, match=rf"/{holder.pid}\b"):
        store.claim(NAME)
    holder.kill()
    claim, seconds = claim_at_once(store)
    claim.release()
    assert seconds < 0.1


def test_of_six_processes_that_race_one_wins_each_time(start_runner: Callable[[], Runner]) -> None:
    runners = [start_runner() for _ in range(6)]
    for _ in range(50):
        for one in runners:
            one.send("claim", NAME)
        answers = [one.answer() for one in runners]
        assert sorted(answers) == ["claimed"] + ["refused"] * 5
        assert runners[answers.index("claimed")].ask("release") == "released"


def test_a_claim_does_not_outlive_a_restart_of_redis(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis(data=True, appendfsync="always")
    with place("redis", server.url) as at:
        _claim_is_lost_over(server.restart, at)


def test_a_claim_ends_also_where_redis_refuses_to_take_it_back(
    own_redis: Callable[..., EmbeddedRedis],
) -> None:
    with Redis.from_url(own_redis().url) as client:
        store = RedisCheckpoints(client, "counters")
        claim = store.claim(NAME)
        client.execute_command("ACL", "SETUSER", "default", "-eval", "-del")
        claim.release()
        wait_for(lambda: store.holder(NAME) is None, timeout=1.0)


@pytest.mark.parametrize("command", [["SET", "text"], ["SADD", "text"]])
def test_a_number_of_claims_that_is_none_is_named(redis_client: Redis, command: list[str]) -> None:
    redis_client.execute_command(command[0], "{counters}:epoch", *command[1:])
    with pytest.raises(StoreError, match=r"{counters}:epoch in Redis holds no number; delete it"):
        RedisCheckpoints(redis_client, "counters").claim(NAME)


def test_a_claim_does_not_outlive_a_restart_of_postgresql(
    postgresql_server: Postgresql, postgresql_url: str
) -> None:
    with place("postgresql", postgresql_url) as at:
        _claim_is_lost_over(postgresql_server.restart, at)


def _claim_is_lost_over(restart: Callable[[], None], at: Place) -> None:
    store = at.open()
    store.put(NAME, {"row": 1}, {}, "idle")
    former = store.claim(NAME)
    restart()
    with pytest.raises(ClaimLost, match="ended"):
        former.check()
    with pytest.raises(ClaimLost, match=r"ended$"):  # it does not come back
        former.check()
    with at.open().claim(NAME) as claim:
        assert claim.epoch > former.epoch
        with pytest.raises(ClaimLost):
            store.advance(NAME, {"row": 9}, fence=former.fence)
        store.advance(NAME, {"row": 2}, fence=claim.fence)
    former.release()


@pytest.fixture(params=["redis", "postgresql"])
def remote(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store that is reached through a cable."""
    with place(request.param, request.getfixturevalue(f"{request.param}_url")) as at:
        yield at


def test_a_holder_that_was_cut_off_finds_its_writes_refused_when_it_is_back(remote: Place) -> None:
    with TcpProxy(remote.port) as cable:
        holder = remote.open(remote.through(cable.port))
        holder.put(NAME, {"row": 1}, {}, "idle")
        former = holder.claim(NAME)
        holder.advance(NAME, {"row": 2}, fence=former.fence)
        cable.cut_server_side()
        other = remote.open()
        claim, _ = claim_at_once(other)
        other.advance(NAME, {"row": 3}, fence=claim.fence)
        cable.heal()
        for write in FENCED.values():
            with pytest.raises(ClaimLost):
                write(holder, former.fence)
        with pytest.raises(ClaimLost):
            former.check()
        former.release()
        row = other.get(NAME)
        assert row is not None
        assert row.position == {"row": 3}
        claim.check()
        claim.release()


def test_a_connection_that_is_dead_at_one_end_holds_its_claim_until_the_server_knows(remote: Place) -> None:
    with TcpProxy(remote.port) as cable:
        former = remote.open(remote.through(cable.port)).claim(NAME)
        cable.cut_client_side()
        with pytest.raises(ClaimLost):
            former.check()
        other = remote.open()
        with pytest.raises(AlreadyRunning):
            other.claim(NAME)
        cable.cut_server_side()
        claim, _ = claim_at_once(other)
        claim.release()
        cable.heal()
        former.release()


def test_a_session_that_was_ended_by_hand_is_no_claim_any_more(postgresql_url: str) -> None:
    with place("postgresql", postgresql_url) as at:
        assert isinstance(at, SqlPlace)
        store = at.open()
        former = store.claim(NAME)
        holder = store.holder(NAME)
        assert holder is not None
        session = holder.rpartition("session ")[2].rstrip(")")
        with at.engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({session})")
        with pytest.raises(ClaimLost, match="the session that held the claim"):
            former.check()
        former.release()
        claim, _ = claim_at_once(store)
        claim.release()


def test_the_next_holder_waits_for_a_write_of_the_former_one(postgresql_url: str) -> None:
    """Else it would begin from what that write is about to change."""
    with place("postgresql", postgresql_url) as at:
        assert isinstance(at, SqlPlace)
        store = at.open()
        with store.claim(NAME) as former:
            pass
        other = at.open()
        with store.claim(NAME) as former, at.engine.connect() as connection:
            store.within(connection).advance(NAME, {"row": 2}, fence=former.fence)
            with at.engine.begin() as admin:
                admin.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                )
            wait_for(lambda: other.holder(NAME) is None)
            with pytest.raises(AlreadyRunning, match="a write of its former runner has not ended"):
                other.claim(NAME)
            connection.commit()
        with other.claim(NAME):
            row = other.get(NAME)
            assert row is not None
            assert row.position == {"row": 2}


def test_names_are_locked_by_the_same_number_in_every_process() -> None:
    assert (lock_key("backfill:content"), lock_key("rollup:month")) == (763542048, 1006145864)


def test_a_lock_file_that_was_replaced_is_no_claim_any_more(tmp_path: Path) -> None:
    with place("sqlite", f"sqlite:///{tmp_path}/checkpoints.db") as at:
        store = at.open()
        with store.claim(NAME) as former:
            (file,) = (tmp_path / "checkpoints.db.claims").iterdir()
            file.unlink()
            with pytest.raises(ClaimLost, match="the file that held the claim"):
                former.check()
            with store.claim(NAME) as claim:
                claim.check()
                with pytest.raises(ClaimLost):
                    store.advance(NAME, {"row": 1}, fence=former.fence)


def test_a_lock_file_that_is_replaced_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place("sqlite", f"sqlite:///{tmp_path}/checkpoints.db") as at:
        store = at.open()
        store.claim(NAME).release()
        (file,) = (tmp_path / "checkpoints.db.claims").iterdir()
        flock, locked = fcntl.flock, []

        def replace_first(descriptor: int, kind: int) -> None:
            if not locked:
                file.unlink()
            locked.append(kind)
            flock(descriptor, kind)

        monkeypatch.setattr(fcntl, "flock", replace_first)
        with store.claim(NAME) as claim:
            claim.check()


def test_who_looks_for_the_holder_at_that_moment_is_not_taken_for_one(tmp_path: Path) -> None:
    with place("sqlite", f"sqlite:///{tmp_path}/checkpoints.db") as at:
        store = at.open()
        store.claim(NAME).release()
        (path,) = (tmp_path / "checkpoints.db.claims").iterdir()
        claims: list[Claim] = []
        contender = threading.Thread(target=lambda: claims.append(store.claim(NAME)))
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            contender.start()
            contender.join(0.05)
            assert claims == []
        contender.join(10)
        claims[0].release()


def test_nobody_comes_between_the_look_at_the_claim_and_the_write_it_allows(tmp_path: Path) -> None:
    with place("sqlite", f"sqlite:///{tmp_path}/checkpoints.db") as at:
        assert isinstance(at, SqlPlace)
        store, impatient = at.open(), engines.connect(at.url, timeout=0.01)
        intruders: list[str] = []

        def intrude(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if "FROM claims" in statement:
                with impatient.connect() as other:
                    try:
                        other.exec_driver_sql("UPDATE claims SET token = 'mine'")
                    except OperationalError as error:
                        intruders.append(str(error.orig))

        with store.claim(NAME) as claim, at.engine.connect() as connection:
            listen(connection, "after_cursor_execute", intrude)
            store.within(connection).advance(NAME, {"row": 2}, fence=claim.fence)
            connection.commit()
        impatient.dispose()
        assert intruders == ["database is locked"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_has_no_claims(url: str) -> None:
    store = SqlCheckpoints(engines.connect(url))
    for call in (store.claim, store.holder):
        with pytest.raises(StoreError, match="a database in memory has no claims"):
            call(NAME)
