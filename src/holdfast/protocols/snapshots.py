"""Global snapshots: where the stages of a region are cut, so that all of them can return to one consistent moment.

A **region** is the stages that recover by snapshots. A snapshot has one **part** a stage: the last epoch that belongs to
it, and for every input the position from which the stage would read on. The **marker** of a channel inside the region
follows from its producer's part: it stands behind the last epoch of it. So a marker is a boundary between epochs, it
travels in the channel's own order, and nothing has to be sent. What lies between a reader's position and the marker is
the **state of the channel**: sent before the snapshot and not yet received, it is part of it.

A cut is **consistent** if no reader's position is behind the marker (a row received that was never sent) and the epochs
between position and marker are kept (a row sent and lost). `flaws` checks the first, retention sees to the second. It
holds because of two rules: a stage takes its part from one view of the ledger, at its head; and a stage that has not
taken its part plans no epoch that reads beyond a marker (`ceilings`). Neither needs the stages to agree on a time.

The modes differ in when a stage takes its part, and from where it would read on:

- `aligned`: when it has read up to the markers of all its inputs, not further. No channel has a state.
- `unaligned`: as soon as one of its inputs has a marker (Chandy and Lamport), overtaking what is unread. The unread is
  the state of the channel. A stage that reads from outside the region begins by itself, so that a cycle has a beginning;
  cycles work, because no stage waits for all its inputs.
- `at_least_once`: when it has read up to all markers or beyond; it never waits. After a failure it reads on from the
  markers although its state has seen more: rows count twice.
- `freeze`: no stage of the region plans anything until the snapshot is over. The naive way, to compare with.

A snapshot goes from **preparing** (the markers are on their way, stages take their parts, files are carried) to
**committed** (all parts are there, and all files where they survive: one write decides it, and from then on sinks may
publish what it covers), to **done** (the sinks have); or to **aborted**, which nobody ever sees anything of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

MODES = ("aligned", "unaligned", "at_least_once", "freeze")

PREPARING, COMMITTED, DONE, ABORTED = "preparing", "committed", "done", "aborted"
ASKED = "asked"  # somebody wants one; it begins when there is room for it


@dataclass(frozen=True)
class Part:
    """What one stage adds to a snapshot."""

    epoch: int  # the last that belongs to it, -1 if none does
    positions: Mapping[str, int]  # by input, where the stage would read on


@dataclass(frozen=True)
class Standing:
    """Where a stage stands, from one view of the ledger."""

    head: int
    positions: Mapping[str, int]  # by input, the next that it reads
    is_planned: bool  # whether an epoch after the head is planned, and perhaps under way


# By stage, its inputs; by input, the stage of the region that writes it, or None where it comes from outside.
Region = Mapping[str, Mapping[str, str | None]]

# By stage, what it has added so far.
Parts = Mapping[str, Part]


class Move(Enum):
    """What a coordinator does next about one snapshot."""

    WAIT = "wait"
    COMMIT = "commit"
    ABORT = "abort"


def markers(region: Region, stage: str, parts: Parts) -> dict[str, int]:
    """By input of a stage, where the marker stands, as far as producers in the region have taken their parts."""
    return {
        name: parts[producer].epoch + 1
        for name, producer in region[stage].items()
        if producer is not None and producer in parts
    }


def ceilings(mode: str, region: Region, stage: str, parts: Parts) -> dict[str, int] | None:
    """By input, the position up to which a stage that has not taken its part may plan; None if it may plan nothing.

    >>> region = {"in": {"source:a": None}, "sum": {"channel:in.out": "in"}}
    >>> ceilings("aligned", region, "sum", {"in": Part(6, {"source:a": 9})})
    {'channel:in.out': 7}
    """
    if mode == "freeze":
        return None
    return {} if mode == "at_least_once" else markers(region, stage, parts)


def bounds(region: Region, stage: str, under_way: Sequence[tuple[str, Parts]]) -> dict[str, int] | None:
    """The same for all snapshots that are under way, by mode and parts, oldest first: a stage takes its parts in order.

    It must not read beyond the marker of a later one either, whatever the mode of the first lets it do.

    >>> region = {"in": {"source:a": None}, "sum": {"channel:in.out": "in"}}
    >>> bounds(region, "sum", [("at_least_once", {}), ("unaligned", {"in": Part(6, {"source:a": 9})})])
    {'channel:in.out': 7}
    """
    # One that freezes holds a stage also when it has the stage's part, but not before those that are older.
    pending = [(mode, parts) for mode, parts in under_way if mode == "freeze" or stage not in parts]
    if not pending:
        return {}
    first, *later = pending
    found = ceilings(first[0], region, stage, first[1])
    if found is None:
        return None
    waited = [parts for mode, parts in later if stage not in parts and mode != "at_least_once"]
    for parts in waited:
        for name, at in markers(region, stage, parts).items():
            found[name] = min(at, found.get(name, at))
    return found


def part_of(mode: str, region: Region, stage: str, standing: Standing, parts: Parts) -> Part | None:
    """The part that a stage takes now, None if it is not yet to take it."""
    found = markers(region, stage, parts)
    inside = [name for name, producer in region[stage].items() if producer is not None]
    here = Part(standing.head, dict(standing.positions))
    match mode:
        case "freeze":
            return None if standing.is_planned else here
        case "unaligned":
            return here if found or len(inside) < len(region[stage]) else None
        case "aligned":
            arrived = all(standing.positions[name] == found.get(name) for name in inside)
            return here if arrived else None
        case _:
            passed = all(name in found and standing.positions[name] >= found[name] for name in inside)
            return Part(standing.head, {**standing.positions, **found}) if passed else None


def flaws(region: Region, parts: Parts) -> list[str]:
    """What is inconsistent in a cut: stages without a part, and rows that were received and never sent."""
    wrong = [f"{stage} has no part" for stage in region if stage not in parts]
    for stage in region:
        if stage in parts:
            for name, marker in markers(region, stage, parts).items():
                position = parts[stage].positions[name]
                if position > marker:
                    wrong.append(f"{stage} has read {name} up to {position}, of which only {marker} was sent")
    return wrong


def channel_state(region: Region, parts: Parts) -> dict[tuple[str, str], tuple[int, int]]:
    """By stage and input, the epochs that were sent before the cut and are received after it."""
    return {
        (stage, name): (parts[stage].positions[name], marker)
        for stage in region
        for name, marker in markers(region, stage, parts).items()
        if parts[stage].positions[name] < marker
    }


@dataclass(frozen=True)
class Pace:
    """How often snapshots are taken, and how long one may take."""

    every_us: int
    min_pause_us: int
    max_concurrent: int
    timeout_us: int
    tolerate: int  # aborted in a row


def is_due(pace: Pace, now_us: int, begun_us: int, ended_us: int, under_way: int, at_rest: bool) -> bool:
    """Whether to begin another snapshot, at rest also before its time: the last rows of a run wait for nothing else."""
    if under_way >= pace.max_concurrent or now_us - ended_us < pace.min_pause_us:
        return False
    return at_rest or now_us - begun_us >= pace.every_us


def next_move(
    region: Region, parts: Parts, safe: Mapping[str, int], begun_us: int, now_us: int, pace: Pace
) -> Move:
    """Commit when every part is there and its files are where they survive; `safe` says how far that is, by stage."""
    if all(stage in parts and safe[stage] >= parts[stage].epoch for stage in region):
        return Move.COMMIT
    return Move.ABORT if now_us - begun_us > pace.timeout_us else Move.WAIT


def failed_in_a_row(statuses: Sequence[tuple[str, bool]]) -> int:
    """How many snapshots failed since one did not; by snapshot, oldest first: its status, and whether it is to blame.

    >>> failed_in_a_row([("aborted", True), ("done", False), ("aborted", True), ("aborted", False)])
    1
    """
    count = 0
    for status, to_blame in statuses:
        if status in (COMMITTED, DONE):
            count = 0
        elif status == ABORTED and to_blame:
            count += 1
    return count


def kept(complete: Iterable[tuple[int, bool]]) -> set[int]:
    """Of the complete snapshots, by number and whether somebody asked for it, those that can be returned to.

    The newest always; one that was asked for until it is deleted.
    """
    found = list(complete)
    newest = max((number for number, _ in found), default=None)
    return {number for number, asked in found if asked or number == newest}
