"""The numbers of messages: what the XOR tracker adds up instead of the messages themselves.

A message is what a segment carries of a label to a reader. Its number has 64 bits and is a keyed hash (BLAKE2b, a key
a flow) of the segment's place, its reader and the label: branch, stage, task, epoch and position, never a file's name,
so that a replay gives the same numbers, and another branch others. The reader is part of it because a segment that two
stages read is two messages: one number for both would cancel itself when it is emitted.

BLAKE2b runs once a segment and once a label; the pairs are joined by one round of mixing in NumPy. For one label,
joining is a bijection of the segment's hash, so the numbers of a label's messages are as independent as the hashes of
the segments are. The XOR of a set of them that is not empty is zero with probability 2**-64. A flow that looks a
million times a second would see one such false zero in half a million years, and then only if as many messages had been
emitted as consumed (the tracker counts too).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.protocols.substreams import Node

_BYTES = 8
_SEGMENT, _LABEL = b"segment", b"label"  # hashes of one kind are never those of another

Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.intp]


class Segment(NamedTuple):
    """One segment on its way to one reader."""

    branch: int  # of the manifest that published it
    sender: Node
    epoch: int
    position: int  # among the segments of the sender's epoch, in the same order in every replay
    reader: Node


@dataclass(frozen=True)
class Carried:
    """Which labels segments carry, as columns: pair i is segment `segment_of[i]` with rows of label `label_of[i]`."""

    segments: Sequence[Segment]
    labels: Sequence[str]
    segment_of: Positions
    label_of: Positions

    @classmethod
    def of(cls, pairs: Iterable[tuple[Segment, str]]) -> Carried:
        """From pairs, each of which is one message."""
        listed = list(pairs)
        segments = {segment: at for at, segment in enumerate(dict.fromkeys(s for s, _ in listed))}
        labels = {label: at for at, label in enumerate(dict.fromkeys(label for _, label in listed))}
        return cls(
            tuple(segments),
            tuple(labels),
            np.fromiter((segments[segment] for segment, _ in listed), np.intp, len(listed)),
            np.fromiter((labels[label] for _, label in listed), np.intp, len(listed)),
        )


class Tally(NamedTuple):
    """Messages of one label: their XOR, and how many they are."""

    number: int
    messages: int


def tally(key: bytes, carried: Carried) -> dict[str, Tally]:
    """All messages of each label as one number: what a task sends instead of a number a message.

    >>> segment = Segment(0, Node("in"), 7, 0, Node("out"))
    >>> once = tally(b"flow", Carried.of([(segment, "monday")]))
    >>> once == tally(b"flow", Carried.of([(segment, "monday")])), once["monday"].messages
    (True, 1)
    """
    numbers = message_numbers(key, carried)
    xors = np.zeros(len(carried.labels), np.uint64)
    np.bitwise_xor.at(xors, carried.label_of, numbers)
    counts = np.bincount(carried.label_of, minlength=len(carried.labels))
    return {
        label: Tally(int(xor), int(count))
        for label, xor, count in zip(carried.labels, xors, counts, strict=True)
    }


def merged(parts: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """The tallies of several tasks, or of several epochs that are read together, as one."""
    total: dict[str, Tally] = {}
    for part in parts:
        for label, one in part.items():
            before = total.get(label, Tally(0, 0))
            total[label] = Tally(before.number ^ one.number, before.messages + one.messages)
    return total


def message_numbers(key: bytes, carried: Carried) -> Words:
    """The number of every pair."""
    segments = _hashes(key, _SEGMENT, (_spelled(segment) for segment in carried.segments))
    labels = _hashes(key, _LABEL, (label.encode() for label in carried.labels))
    return _mixed(segments[carried.segment_of] ^ labels[carried.label_of])


def _spelled(segment: Segment) -> bytes:
    """Without two segments that are spelled alike, whatever their stages are called."""
    return json.dumps(segment).encode()


def _hashes(key: bytes, kind: bytes, things: Iterable[bytes]) -> Words:
    digests = (blake2b(thing, digest_size=_BYTES, key=key, person=kind).digest() for thing in things)
    return np.frombuffer(b"".join(digests), np.dtype("<u8")).astype(np.uint64)


def _mixed(words: Words) -> Words:
    """A bijection of 64 bits after which equal differences are no longer equal (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
