"""Nothing goes that a cursor, a safe point or a reader may still ask for."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.protocols.retention import superseded, trimmed_below


@dataclass(frozen=True)
class Layer:
    id: int
    first: int
    last: int


INPUTS = [Layer(i, i, i) for i in range(4)]
MERGED = Layer(9, 0, 3)


def test_inputs_of_a_merge_stay_until_the_safe_point_has_passed_its_end() -> None:
    assert superseded([*INPUTS, MERGED], safe=2, pinned=()) == []
    assert superseded([*INPUTS, MERGED], safe=3, pinned=()) == [0, 1, 2, 3]


def test_a_pinned_layer_stays() -> None:
    assert superseded([*INPUTS, MERGED], safe=3, pinned={1, 2}) == [0, 3]


def test_a_merge_of_merges_supersedes_both_levels() -> None:
    wider = Layer(10, 0, 7)
    layers = [*INPUTS, MERGED, *(Layer(i, i, i) for i in range(4, 8)), wider]
    assert superseded(layers, safe=7, pinned=()) == [0, 1, 2, 3, 9, 4, 5, 6, 7]


def test_a_channel_is_trimmed_to_its_slowest_consumer_and_its_own_safe_point() -> None:
    assert trimmed_below([5, 3], safe=9) == 3
    assert trimmed_below([5, 7], safe=3) == 4
    assert trimmed_below([], safe=-1) == 0


def test_layers_of_one_range_do_not_stand_in_for_each_other() -> None:
    assert superseded([Layer(1, 4, 7), Layer(2, 4, 7)], safe=9, pinned=()) == []
