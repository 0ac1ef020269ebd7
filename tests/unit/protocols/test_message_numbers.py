"""The numbers of messages, and their sums."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from holdfast.protocols.message_numbers import Carried, Segment, Tally, _mixed, merged, message_numbers, tally
from holdfast.protocols.substreams import Node

BASE = Segment(0, Node("in", 1), 7, 2, Node("out", 3))
NUMBER = 0x46DC91389BD7869A


def number(segment: Segment, label: str = "monday", key: bytes = b"flow") -> int:
    return tally(key, Carried.of([(segment, label)]))[label].number


def test_a_replay_gives_the_same_numbers() -> None:
    assert number(BASE) == number(Segment(0, Node("in", 1), 7, 2, Node("out", 3)))


@pytest.mark.parametrize(
    "other",
    [
        BASE._replace(branch=1),
        BASE._replace(sender=Node("in", 2)),
        BASE._replace(sender=Node("in2", 1)),
        BASE._replace(epoch=8),
        BASE._replace(position=3),
        BASE._replace(reader=Node("out", 4)),
        BASE._replace(reader=Node("late", 3)),
    ],
)
def test_everything_about_a_segment_and_who_reads_it_counts(other: Segment) -> None:
    assert number(other) != number(BASE)


def test_the_label_and_the_flow_count_too() -> None:
    assert len({number(BASE), number(BASE, "tuesday"), number(BASE, key=b"other flow")}) == 3


def test_names_cannot_be_put_together_to_look_like_others() -> None:
    one = BASE._replace(sender=Node('a", 1, "b', 0))
    other = BASE._replace(sender=Node("a", 1))
    assert number(one) != number(other)


def test_equal_differences_between_labels_do_not_cancel() -> None:
    """Two segments with two labels each: without mixing, the four numbers would add up to zero."""
    segments = [BASE, BASE._replace(position=3)]
    numbers = message_numbers(b"flow", Carried.of(product(segments, ("monday", "tuesday"))))
    assert np.bitwise_xor.reduce(numbers) != 0


def test_the_sum_of_a_task_is_the_sum_of_its_messages() -> None:
    pairs = [(BASE._replace(position=at), f"label-{at % 3}") for at in range(12)]
    one_by_one = merged(tally(b"flow", Carried.of([pair])) for pair in pairs)
    assert tally(b"flow", Carried.of(pairs)) == one_by_one
    assert {label: sum_.messages for label, sum_ in one_by_one.items()} == {f"label-{n}": 4 for n in range(3)}


def test_emissions_of_some_tasks_cancel_the_consumptions_of_others() -> None:
    pairs = [(BASE._replace(position=at, sender=Node("in", at % 4)), "monday") for at in range(40)]
    sent = merged(tally(b"flow", Carried.of(pairs[at::4])) for at in range(4))
    read = merged(tally(b"flow", Carried.of(pairs[at : at + 10])) for at in range(0, 40, 10))
    assert sent == read


def test_nothing_carried_is_no_label() -> None:
    assert tally(b"flow", Carried.of([])) == {}
    assert merged([{}, {"monday": Tally(5, 1)}]) == {"monday": Tally(5, 1)}


def test_bits_of_the_numbers_are_even() -> None:
    numbers = message_numbers(
        b"flow", Carried.of((BASE._replace(position=at), "monday") for at in range(4_000))
    )
    assert len(np.unique(numbers)) == 4_000
    set_bits = [float(np.mean(numbers >> np.uint64(bit) & np.uint64(1))) for bit in range(64)]
    assert 0.45 < min(set_bits) <= max(set_bits) < 0.55


def test_numbers_are_the_same_in_every_version() -> None:
    """What an older Holdfast has emitted must cancel what a newer one consumes."""
    assert number(BASE) == NUMBER
    assert _mixed(np.array([1, 2], np.uint64)).tolist() == [0x5692161D100B05E5, 0xDBD238973A2B148A]
