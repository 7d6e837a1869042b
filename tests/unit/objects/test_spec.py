"""The entries of the registry."""

from __future__ import annotations

import pytest

from counters.config import Layout
from counters.errors import StoreError
from counters.objects.spec import CounterSpec, Successor, decode_spec, encode_spec

FOLLOWED = CounterSpec("content", 14, layout=Layout.LEGACY, adopted=True, epoch=3, successor=Successor(16, 2))


def test_an_entry_says_all_and_of_no_successor_nothing() -> None:
    assert encode_spec(CounterSpec("content")) == (
        b'{"name":"content","precision":18,"generation":1,"layout":"native","adopted":false,"epoch":0}'
    )


@pytest.mark.parametrize("spec", [CounterSpec("content", 15), FOLLOWED])
def test_an_entry_is_read_as_it_was_written(spec: CounterSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec


def test_what_follows_is_a_native_counter_of_the_same_name() -> None:
    assert FOLLOWED.following == CounterSpec("content", 16, 2, epoch=3)
    assert FOLLOWED.generations == [FOLLOWED, FOLLOWED.following]
    assert CounterSpec("content").generations == [CounterSpec("content")]


@pytest.mark.parametrize(
    ("successor", "reason"),
    [
        (Successor(13, 2), "has precision 13 in the registry, not 14 to 20"),
        (Successor(60, 2), "has precision 60 in the registry, not 14 to 20"),
        (Successor(16, 1), "of generation 1 has a successor of generation 1 in the registry"),
    ],
)
def test_a_successor_that_cannot_be_is_one_line_that_says_what_to_do(
    successor: Successor, reason: str
) -> None:
    with pytest.raises(StoreError, match=rf"{reason}.*; delete its entry from Redis$"):
        decode_spec(encode_spec(CounterSpec("content", successor=successor)))
