"""Which offsets an item of a topic has, and which task reads which of them. Pure functions.

An item holds, for every partition that was there when it was made, the offsets that it spans, none included: so the
last item alone says where the next one begins. Ranges of offsets, not numbers of messages: markers of transactions and
messages of aborted ones have offsets too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.clients.kafka_messages import Slice
from holdfast.core.json import Json

Positions = dict[int, int]


def cut(position: Mapping[int, int], ends: Mapping[int, int], most: int) -> list[Slice]:
    """The next offsets of every partition, at most so many together; the longer a partition's rest, the more of it.

    >>> cut({0: 0, 1: 10}, {0: 5, 1: 10}, 100)
    [Slice(partition=0, start=0, stop=5), Slice(partition=1, start=10, stop=10)]
    >>> [part.stop - part.start for part in cut({0: 0, 1: 0, 2: 0}, {0: 80, 1: 20, 2: 1}, 10)]
    [7, 1, 1]
    """
    rest = {partition: max(0, ends[partition] - start) for partition, start in position.items()}
    total, left = sum(rest.values()), most
    taken: dict[int, int] = {}
    for partition in sorted(rest, key=lambda partition: (-rest[partition], partition)):
        share = rest[partition] if total <= most else max(1, rest[partition] * most // total)
        taken[partition] = min(share, rest[partition], left)
        left -= taken[partition]
    return [
        Slice(partition, start, start + taken[partition]) for partition, start in sorted(position.items())
    ]


def to_json(slices: Sequence[Slice]) -> Json:
    """As an item's body has them."""
    return {str(part.partition): [part.start, part.stop] for part in slices}


def from_json(body: Mapping[str, Sequence[int]]) -> list[Slice]:
    """Read what `to_json` wrote."""
    return [Slice(int(partition), start, stop) for partition, (start, stop) in body.items()]


def offsets_in(slices: Sequence[Slice]) -> int:
    """How many offsets there are in slices: at least as many as messages."""
    return sum(part.stop - part.start for part in slices)


def joined(slices: Sequence[Slice]) -> list[Slice]:
    """The same offsets in as few slices as possible.

    >>> joined([Slice(0, 0, 5), Slice(1, 3, 3), Slice(0, 5, 9), Slice(0, 12, 13)])
    [Slice(partition=0, start=0, stop=9), Slice(partition=0, start=12, stop=13)]
    """
    found: list[Slice] = []
    for part in sorted(part for part in slices if part.start < part.stop):
        last = found[-1] if found else None
        if last and last.partition == part.partition and last.stop == part.start:
            found[-1] = last._replace(stop=part.stop)
        else:
            found.append(part)
    return found


def shared_out(slices: Sequence[Slice], most: int) -> list[tuple[Slice, ...]]:
    """What each task reads: about so many offsets, and of each partition one slice.

    >>> shared_out([Slice(0, 0, 25), Slice(1, 0, 3), Slice(2, 0, 4)], 10)
    [(Slice(partition=0, start=0, stop=10),), (Slice(partition=0, start=10, stop=20),), (Slice(partition=0, start=20, \
stop=25), Slice(partition=1, start=0, stop=3)), (Slice(partition=2, start=0, stop=4),)]
    """
    pieces = [
        Slice(part.partition, start, min(start + most, part.stop))
        for part in slices
        for start in range(part.start, part.stop, most)
    ]
    tasks: list[list[Slice]] = []
    for piece in pieces:
        last = tasks[-1] if tasks else []
        fits = offsets_in(last) + offsets_in([piece]) <= most
        if not last or not fits or piece.partition in {part.partition for part in last}:
            tasks.append([])
        tasks[-1].append(piece)
    return [tuple(task) for task in tasks]
