"""Spines are consecutive; a merge stands in for its inputs only at or above its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.files import LayerRow, cover


def layer(first: int, last: int) -> LayerRow:
    return LayerRow(first * 100 + last, first, last, "a", 1, 1, [])


def spans(layers: list[LayerRow]) -> list[tuple[int, int]]:
    return [(found.first, found.last) for found in layers]


def test_the_widest_layers_are_chosen() -> None:
    layers = [layer(0, 0), layer(1, 1), layer(2, 2), layer(3, 3), layer(0, 2)]
    assert spans(cover(layers, 3)[0]) == [(0, 2), (3, 3)]


def test_inside_a_merged_range_its_inputs_are_used() -> None:
    layers = [layer(0, 0), layer(1, 1), layer(2, 2), layer(0, 2)]
    spine, reached = cover(layers, 1)
    assert (spans(spine), reached) == ([(0, 0), (1, 1)], 2)


def test_a_gap_is_reported_where_it_begins() -> None:
    assert cover([layer(0, 1), layer(3, 3)], 3)[1] == 2
    assert cover([], 5)[1] == 0


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=6))
def test_whatever_was_merged_every_epoch_can_be_reached(head: int, merges: list[tuple[int, int]]) -> None:
    layers = [layer(e, e) for e in range(head)]
    layers += [layer(min(a, b), max(a, b)) for a, b in merges if max(a, b) < head and a != b]
    nested = all(
        not (x.first < y.first <= x.last < y.last) for x in layers for y in layers
    )  # merges take whole layers, so ranges never overlap in part
    if nested:
        for epoch in range(-1, head):
            assert cover(layers, epoch)[1] == epoch + 1
