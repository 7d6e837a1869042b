"""What keys do to the registers of a counter, and what is sent for it."""

from __future__ import annotations

import numpy as np
import pytest
from counting import expected
from published import PREFIX, numbered, publish
from redis import Redis

from counters.objects import rises
from counters.objects.rises import MERGE_FROM, Mirrors
from counters.objects.sketch import hash_keys, read_blob
from counters.objects.spec import CounterSpec, Successor
from counters.objects.store import CounterStore

ALONE = CounterSpec("content", 15)
FOLLOWED = CounterSpec("content", 15, successor=Successor(16, 2))


@pytest.fixture
def mirrors(redis_client: Redis) -> Mirrors:
    return Mirrors(CounterStore(redis_client, PREFIX, "g"))


def test_keys_are_sent_until_redis_is_said_to_have_them(mirrors: Mirrors) -> None:
    [first] = mirrors.rises(ALONE, [b"a", b"b"])
    assert sorted(key for _, keys in first.addition.strata for key in keys) == [b"a", b"b"]
    [again] = mirrors.rises(ALONE, [b"a", b"b"])
    assert len(again.registers) == 2
    again.apply()
    [nothing] = mirrors.rises(ALONE, [b"a", b"b"])
    assert (len(nothing.registers), nothing.addition.strata) == (0, [])


def test_keys_that_redis_has_already_are_not_sent(redis_client: Redis, mirrors: Mirrors) -> None:
    flat = CounterSpec("content", 14)
    publish(redis_client, flat, numbered(100))
    [rise] = mirrors.rises(flat, numbered(101))
    assert rise.strata == [(0, [b"key-100"])]


def test_every_generation_has_registers_of_its_own(mirrors: Mirrors) -> None:
    [old] = mirrors.rises(ALONE, numbered(50))
    old.apply()
    old, new = mirrors.rises(FOLLOWED, numbered(50))
    assert len(old.registers) == 0
    assert (new.spec, len(new.registers)) == (FOLLOWED.following, 50)


def test_keys_are_hashed_once_for_two_generations(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    monkeypatch.setattr(rises, "hash_keys", lambda keys: hashed.append(keys) or hash_keys(keys))
    assert len(mirrors.rises(FOLLOWED, numbered(50))) == 2
    assert hashed == [numbered(50)]


def test_many_keys_for_a_stratum_are_sent_as_one_sketch(mirrors: Mirrors) -> None:
    [rise] = mirrors.rises(ALONE, numbered(5 * MERGE_FROM))
    sketches = [read_blob(some) for _, some in rise.strata if isinstance(some, bytes)]
    assert np.array_equal(np.concatenate(sketches), expected(numbered(5 * MERGE_FROM), 15))


def test_one_generation_is_forgotten_alone(mirrors: Mirrors) -> None:
    for rise in mirrors.rises(FOLLOWED, numbered(50)):
        rise.apply()
    mirrors.drop(FOLLOWED)
    assert [len(rise.registers) for rise in mirrors.rises(FOLLOWED, numbered(50))] == [50, 0]


def test_all_is_forgotten_at_once(mirrors: Mirrors) -> None:
    assert not mirrors.forget()
    for rise in mirrors.rises(FOLLOWED, numbered(50)):
        rise.apply()
    assert mirrors.forget()
    assert [len(rise.registers) for rise in mirrors.rises(FOLLOWED, numbered(50))] == [50, 50]
