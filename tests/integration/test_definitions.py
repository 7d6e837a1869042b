"""What is looked for inside messages changes, and what stands in Redis is not what should."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from counting import STORE, Worker, batch, expected, positions, stored, worker
from redis import Redis

from counters.errors import StoreError
from journal_client.batch import Batch, Partition
from journal_client.errors import StalePosition, Unavailable

PREFIX = "journal.objects"
CONTENTS, REVISIONS = f"{PREFIX}.content", f"{PREFIX}.revision"
FIRST = Partition(REVISIONS, 0)

AUTHORS, COMMITTERS = {"person": {"revision": ["author"]}}, {"person": {"revision": ["committer"]}}
MORE = AUTHORS | {"message": {"revision": ["message"]}}


def revisions(view: Worker, ends: dict[int, int], *values: dict[str, bytes]) -> Batch:
    """Revisions of one id, as ``view`` decodes them."""
    decode = view.handler.decoder(REVISIONS)
    assert decode is not None
    read = batch(REVISIONS, [b"id"] * len(values), ends)
    read.values[REVISIONS] = [decode(msgspec.msgpack.encode(value)) for value in values]
    return read


def test_a_worker_that_knows_less_than_one_that_started_later_stands_still(redis_client: Redis) -> None:
    """Or it would move positions past revisions in which it did not look for all that is to be found."""
    old = worker(redis_client, "g", PREFIX, derived=AUTHORS)
    old.handle(revisions(old, {0: 1}, {"author": b"a", "message": b"m"}))
    new = worker(redis_client, "g", PREFIX, derived=MORE)
    assert new.handler.positions([FIRST]) == {FIRST: None}
    with pytest.raises(Unavailable, match=r"give all workers of the group the same objects\.derived"):
        old.handler.handle(revisions(old, {0: 2}, {"author": b"b", "message": b"n"}))
    with pytest.raises(Unavailable):
        old.handler.positions([FIRST])
    again = revisions(new, {0: 2}, {"author": b"a", "message": b"m"}, {"author": b"b", "message": b"n"})
    new.handle(again)
    assert np.array_equal(stored(redis_client, "message", 18), expected([b"m", b"n"], 18))
    assert np.array_equal(stored(redis_client, "person", 18), expected([b"a", b"b"], 18))
    assert positions(redis_client, "g")[REVISIONS] == 2


def test_a_counter_whose_paths_changed_forgets_what_it_counted_under_the_old_ones(
    redis_client: Redis,
) -> None:
    old = worker(redis_client, "g", PREFIX, derived=AUTHORS)
    old.handle(revisions(old, {0: 1}, {"author": b"a", "committer": b"c"}))
    new = worker(redis_client, "g", PREFIX, derived=COMMITTERS)
    assert new.handler.positions([FIRST]) == {FIRST: None}
    new.handle(revisions(new, {0: 1}, {"author": b"a", "committer": b"c"}))
    assert np.array_equal(stored(redis_client, "person", 18), expected([b"c"], 18))


def test_after_a_wrong_path_was_taken_back_the_topic_is_read_again(redis_client: Redis) -> None:
    """All its revisions had been set aside."""
    wrong = worker(redis_client, "g", PREFIX, derived={"parent": {"revision": ["parents"]}})
    wrong.handle(Batch(next_offsets={FIRST: 100}))
    right = worker(redis_client, "g", PREFIX)
    assert right.handler.positions([FIRST]) == {FIRST: None}


def test_workers_that_look_for_the_same_leave_each_other_alone(redis_client: Redis) -> None:
    one = worker(redis_client, "g", PREFIX, derived=MORE)
    one.handle(revisions(one, {0: 1}, {"author": b"a"}))
    other = worker(redis_client, "g", PREFIX, derived=dict(reversed(MORE.items())))
    assert other.handler.positions([FIRST]) == {FIRST: 1}
    one.handler.handle(revisions(one, {0: 2}, {"author": b"b"}))
    assert positions(redis_client, "g")[f"{REVISIONS}:0"] == 2


def test_an_older_state_of_redis_does_not_bring_back_what_was_looked_for_then(redis_client: Redis) -> None:
    key = f"{{{STORE}}}:definitions:g"
    old = worker(redis_client, "g", PREFIX, derived=AUTHORS)
    old.handle(revisions(old, {0: 1}, {"author": b"a"}))
    before = redis_client.dump(key)
    new = worker(redis_client, "g", PREFIX, derived=MORE)
    new.handle(revisions(new, {0: 1}, {"author": b"a", "message": b"m"}))
    redis_client.restore(key, 0, before, replace=True)
    later = revisions(new, {0: 2}, {"author": b"b", "message": b"n"})
    with pytest.raises(StalePosition) as caught:
        new.handler.handle(later)
    assert caught.value.positions == {FIRST: None}  # what was read since is read again
    new.handle(revisions(new, {0: 2}, {"author": b"a", "message": b"m"}, {"author": b"b", "message": b"n"}))
    assert np.array_equal(stored(redis_client, "message", 18), expected([b"m", b"n"], 18))


@pytest.mark.parametrize(
    "entry",
    [b"garbage", b'{"name":"content","precision":2}', b'{"name":"content","precision":30}'],
)
def test_garbage_in_the_registry_is_one_line_that_says_what_to_do(redis_client: Redis, entry: bytes) -> None:
    redis_client.hset(f"{{{STORE}}}:registry", "content", entry)
    with pytest.raises(StoreError, match="delete"):
        worker(redis_client, "g", PREFIX).handle(batch(CONTENTS, [b"a"], {0: 1}))
    assert redis_client.dbsize() <= 2  # no strata beyond all bounds


@pytest.mark.parametrize("key", ["stamps", "offsets:g", "registry", "definitions:g"])
def test_a_foreign_value_in_a_key_of_ours_leaves_no_half_written_batch(redis_client: Redis, key: str) -> None:
    view = worker(redis_client, "g", PREFIX)
    view.handle(batch(CONTENTS, [b"a"], {0: 1}))
    redis_client.set(f"{{{STORE}}}:{key}", "x")
    before = stored(redis_client, "content", 18)
    with pytest.raises(StoreError, match=rf"Redis refuses: .*{key} holds a string, not a hash; delete it"):
        view.handler.handle(batch(CONTENTS, [b"b"], {0: 2}))
    assert np.array_equal(stored(redis_client, "content", 18), before)


def test_a_total_that_is_no_number_leaves_no_half_written_batch(redis_client: Redis) -> None:
    view = worker(redis_client, "g", PREFIX)
    view.handle(batch(CONTENTS, [b"a"], {0: 1}))
    redis_client.hset(f"{{{STORE}}}:offsets:g", CONTENTS, "x")
    with pytest.raises(StoreError, match="holds x for"):
        view.handler.handle(batch(CONTENTS, [b"b"], {0: 2}))
    assert redis_client.hget(f"{{{STORE}}}:offsets:g", f"{CONTENTS}:0") == b"1"


def test_a_position_that_is_no_number_is_one_line_that_says_what_to_do(redis_client: Redis) -> None:
    view = worker(redis_client, "g", PREFIX)
    view.handle(batch(CONTENTS, [b"a"], {0: 1}))
    redis_client.hset(f"{{{STORE}}}:offsets:g", f"{CONTENTS}:0", "x")
    with pytest.raises(StoreError, match="delete it from Redis"):
        view.handler.positions([Partition(CONTENTS, 0)])
