"""The states of a partition: not ours, unsettled, settled."""

from __future__ import annotations

import pytest

from journal_client.assignment import ASK_THE_VIEW, Assignment
from journal_client.batch import Partition

A, B, C = (Partition("topic", number) for number in range(3))


@pytest.fixture
def assignment() -> Assignment:
    """A is settled at 5, B is unsettled, C is not ours."""
    assignment = Assignment()
    assignment.assigned([A, B])
    assignment.settle(A, 5)
    return assignment


def test_a_partition_just_assigned_is_ours_and_may_not_flow() -> None:
    assignment = Assignment()
    assignment.assigned([A])
    assert assignment.owned == {A}
    assert assignment.next_offsets == {}
    assert assignment.unsettled == {A: ASK_THE_VIEW}


def test_a_settled_partition_flows_from_where_it_was_sought(assignment: Assignment) -> None:
    assignment.settle(B, 7)
    assert assignment.next_offsets == {A: 5, B: 7}
    assert assignment.unsettled == {}


def test_a_partition_assigned_again_is_unsettled_again(assignment: Assignment) -> None:
    assignment.assigned([A])
    assert A not in assignment.next_offsets
    assert assignment.unsettled[A] is ASK_THE_VIEW


def test_an_unsettled_partition_stays_ours_and_keeps_its_target(assignment: Assignment) -> None:
    assignment.unsettle(A, 3)
    assert assignment.owned == {A, B}
    assert assignment.unsettled[A] == 3
    assert A not in assignment.next_offsets


def test_the_last_target_of_an_unsettled_partition_holds(assignment: Assignment) -> None:
    assignment.unsettle(A, 3)
    assignment.unsettle(A, ASK_THE_VIEW)
    assert assignment.unsettled[A] is ASK_THE_VIEW


def test_a_removed_partition_is_not_ours_whatever_its_state(assignment: Assignment) -> None:
    assignment.removed([A, B])
    assert assignment.owned == set()


def test_a_removed_partition_can_be_neither_settled_nor_unsettled(assignment: Assignment) -> None:
    assignment.removed([A])
    assignment.settle(A, 9)
    assignment.unsettle(A, 9)
    assert A not in assignment.owned


def test_a_foreign_partition_cannot_be_settled(assignment: Assignment) -> None:
    assignment.settle(C, 1)
    assignment.unsettle(C, 1)
    assert assignment.owned == {A, B}


def test_every_change_of_what_may_flow_is_numbered(assignment: Assignment) -> None:
    numbers = [assignment.number]
    for change in (
        lambda: assignment.unsettle(A, 1),
        lambda: assignment.assigned([C]),
        lambda: assignment.removed([C]),
    ):
        change()
        numbers.append(assignment.number)
    assert numbers == sorted(set(numbers))


def test_the_view_stands_where_it_last_said(assignment: Assignment) -> None:
    assignment.view_stands({A: 5, B: 6})
    assignment.view_stands({A: 8})
    assert assignment.view == {A: 8, B: 6}


def test_a_view_that_never_read_a_partition_stands_nowhere_in_it(assignment: Assignment) -> None:
    assignment.view_stands({A: 5})
    assignment.view_stands({A: None})
    assert assignment.view == {}


def test_where_the_view_stands_in_a_removed_partition_is_forgotten(assignment: Assignment) -> None:
    assignment.view_stands({A: 5})
    assignment.removed([A])
    assert assignment.view == {}


def test_the_end_is_not_reached_before_the_group_has_answered() -> None:
    assert not Assignment().at_end()


def test_a_standby_is_at_the_end() -> None:
    assignment = Assignment()
    assignment.assigned([])
    assert assignment.at_end()


def test_the_end_is_not_reached_while_a_partition_is_unsettled(assignment: Assignment) -> None:
    assignment.ends = {A: 5, B: 0}
    assert not assignment.at_end()
    assignment.settle(B, 0)
    assert assignment.at_end()


def test_the_end_is_reached_only_when_every_partition_is_read(assignment: Assignment) -> None:
    assignment.ends = {A: 6, B: 4}
    assignment.settle(B, 4)
    assert not assignment.at_end()
    assignment.next_offsets[A] = 6
    assert assignment.at_end()


def test_ends_survive_a_rebalance(assignment: Assignment) -> None:
    assignment.ends = {A: 6}
    assignment.removed([A, B])
    assignment.assigned([A])
    assignment.settle(A, 5)
    assert not assignment.at_end()
