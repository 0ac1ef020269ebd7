"""Merging is geometric: few layers, few rewrites, whatever the sizes."""

from __future__ import annotations

import pytest

from holdfast.core import limits
from holdfast.protocols.merging import LayerSize, choose_merge


def simulate(state_rows: int, touched: int, epochs: int) -> tuple[float, int, int]:
    """Rows written by merges over rows of layers, the most layers at once, and the bottom's rewrites."""
    layers = [LayerSize(0, 0, state_rows)]
    written = deepest = bottoms = 0
    for epoch in range(1, epochs + 1):
        layers.append(LayerSize(epoch, epoch, touched))
        while (chosen := choose_merge(layers)) is not None:
            inputs = [layer for layer in layers if chosen[0] <= layer.first and layer.last <= chosen[1]]
            rows = min(state_rows, sum(layer.rows for layer in inputs))
            merged = LayerSize(*chosen, rows)
            at = layers.index(inputs[0])
            layers[at : at + len(inputs)] = [merged]
            written += rows
            bottoms += chosen[0] == 0
        deepest = max(deepest, len(layers))
    return written / (epochs * touched), deepest, bottoms


@pytest.mark.parametrize("state_rows", [10_000, 100_000, 1_000_000, 10_000_000])
def test_bytes_of_merges_stay_within_six_times_the_layers(state_rows: int) -> None:
    factor, deepest, bottoms = simulate(state_rows, 10_000, 2_000)
    assert factor <= 6
    assert deepest <= 4 * limits.MERGE_FANOUT
    assert bottoms >= 1


def test_nothing_is_merged_before_it_is_due() -> None:
    assert choose_merge([]) is None
    assert choose_merge([LayerSize(0, 0, 10)]) is None
    assert (
        choose_merge([LayerSize(0, 0, 1000), *(LayerSize(e, e, 10) for e in range(1, limits.MERGE_FANOUT))])
        is None
    )


def test_what_is_chosen_is_consecutive() -> None:
    layers = [LayerSize(0, 99, 10_000), *(LayerSize(e, e, 10) for e in range(100, 109))]
    assert choose_merge(layers) == (100, 99 + limits.MERGE_FANOUT)


def test_empty_epochs_are_merged_too() -> None:
    layers = [LayerSize(0, 99, 10_000), *(LayerSize(e, e, 0) for e in range(100, 108))]
    assert choose_merge(layers) == (100, 99 + limits.MERGE_FANOUT)


def layers_of(epochs: list[int], rows: int = 10, bottom: int = 10_000) -> list[LayerSize]:
    """A bottom of one epoch, and above it layers of so many epochs each."""
    found = [LayerSize(0, 0, bottom)]
    for number in epochs:
        first = found[-1].last + 1
        found.append(LayerSize(first, first + number - 1, rows))
    return found


def test_the_bottom_is_rewritten_as_soon_as_enough_layers_above_it_have_its_share_of_rows() -> None:
    rows = round(100 * limits.MERGE_BOTTOM_SHARE / limits.MERGE_FANOUT)
    just = layers_of([1] * limits.MERGE_FANOUT, rows, bottom=100)
    assert choose_merge(just) == (0, limits.MERGE_FANOUT)
    less = layers_of([1] * limits.MERGE_FANOUT, rows, bottom=101)
    assert choose_merge(less) == (1, limits.MERGE_FANOUT), (
        "the layers above it are enough for their own level"
    )
    assert choose_merge(layers_of([1] * (limits.MERGE_FANOUT - 1), 1_000, bottom=100)) is None


def test_layers_are_merged_as_soon_as_a_level_has_enough_of_them_and_the_lowest_level_first() -> None:
    fan = limits.MERGE_FANOUT
    assert choose_merge(layers_of([fan] * fan)) == (1, fan * fan)
    assert choose_merge(layers_of([fan] * (fan - 1) + [fan - 1])) is None, "almost as large is a level below"
    assert choose_merge(layers_of([fan * fan] + [fan] * (fan - 1) + [1] * (fan - 1))) is None
    both = layers_of([fan] * fan + [1] * fan)
    assert choose_merge(both) == (fan * fan + 1, fan * fan + fan)
