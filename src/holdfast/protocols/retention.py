"""What may be let go: nothing that a cursor, a safe point or a reader can still ask for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Spanning(Protocol):
    """A layer, as far as retention cares."""

    @property
    def id(self) -> int:
        """Its row in the ledger."""

    @property
    def first(self) -> int:
        """Its first epoch."""

    @property
    def last(self) -> int:
        """Its last epoch."""


def superseded(layers: Sequence[Spanning], safe: int, pinned: Collection[int]) -> list[int]:
    """Layers that a merged layer stands in for, once the safe point has passed the end of its range.

    Until then a lost file may send the stage back inside the range, and the inputs are the way there.
    """
    wide = [layer for layer in layers if layer.first < layer.last and layer.last <= safe]
    return [
        layer.id
        for layer in layers
        if layer.id not in pinned
        and any(
            other.first <= layer.first and layer.last <= other.last and _larger(other, layer)
            for other in wide
        )
    ]


def trimmed_below(needed: Collection[int], safe: int) -> int:
    """Epochs of a channel below this are needed by no consumer, and their own durability is settled."""
    return min([*needed, safe + 1])


def _larger(one: Spanning, other: Spanning) -> bool:
    return one.last - one.first > other.last - other.first
