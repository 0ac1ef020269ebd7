"""Which layers of a spine to merge next.

Invariants: the layers chosen are consecutive; every row is rewritten at most once a level, and the
bottom only when what lies above it has grown to a fixed share of it, so that the bytes of all merges
stay within a small factor of the bytes of the epochs' own layers.

A layer's level is how many times MERGE_FANOUT its size is of the smallest unit. When one level has
MERGE_FANOUT layers, the oldest MERGE_FANOUT of them become one layer of the next. The oldest layer, the bottom, has no
level: it takes in everything above it once that is MERGE_FANOUT layers and MERGE_BOTTOM_SHARE of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core import limits


@dataclass(frozen=True)
class LayerSize:
    """What the decision needs to know of a layer."""

    first: int
    last: int
    rows: int

    @property
    def epochs(self) -> int:
        """How many epochs the layer holds; its level follows from this, so empty epochs merge too."""
        return self.last - self.first + 1


def choose_merge(layers: Sequence[LayerSize]) -> tuple[int, int] | None:
    """The epochs (first, last) of the consecutive layers to merge next, oldest first; None if none is due."""
    if len(layers) < 2:
        return None
    bottom, above = layers[0], layers[1:]
    grown = sum(layer.rows for layer in above)
    enough = len(above) >= limits.MERGE_FANOUT
    if enough and grown >= bottom.rows * limits.MERGE_BOTTOM_SHARE:
        return bottom.first, above[-1].last
    return _due_level(above)


def _due_level(above: Sequence[LayerSize]) -> tuple[int, int] | None:
    """The oldest layers, as many as the fan-out, of the lowest level that has so many."""
    for level in sorted({_level(layer) for layer in above}):
        members = [layer for layer in above if _level(layer) == level]
        if len(members) >= limits.MERGE_FANOUT:
            oldest = members[: limits.MERGE_FANOUT]
            return oldest[0].first, oldest[-1].last
    return None


def _level(layer: LayerSize) -> int:
    level, epochs = 0, layer.epochs
    while epochs >= limits.MERGE_FANOUT:
        level, epochs = level + 1, epochs // limits.MERGE_FANOUT
    return level
