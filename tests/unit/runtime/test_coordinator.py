"""A run that follows a script does not end before the snapshots that it can take are taken, and waits for no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.ledger import epochs, holder, snapshots
from holdfast.ledger.epochs import Commit
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.snapshots import Part
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.script import Script
from registered import register_stage

REGION = ("a", "b")


class Captured:
    """Two stages that are captured as one, without rows, and a script that cuts them where it says."""

    def __init__(self, root: Path, *cuts: int) -> None:
        self.ledger = Ledger(root)
        self.generation = holder.take(self.ledger, "flow")
        for stage in REGION:
            register_stage(self.ledger, self.generation, stage, None, [])
        with self.ledger.write(self.generation) as tx:
            snapshots.set_region(tx, REGION, REGION)
        rt: Any = SimpleNamespace(
            ledger=self.ledger,
            generation=self.generation,
            region={stage: {} for stage in REGION},
            own=REGION,
            plan=SimpleNamespace(snapshots=SimpleNamespace(mode="aligned")),
            script=Script(plans={}, cuts=[dict.fromkeys(REGION, cut) for cut in cuts]),
        )
        self.coordinator = Coordinator(rt, until_idle=True)

    def has_work(self) -> bool:
        with self.ledger.read() as tx:
            return self.coordinator.has_work(tx)

    def begin(self) -> int:
        return snapshots.begin(self.ledger, self.generation, "aligned")

    def add(self, number: int, *stages: str) -> None:
        for stage in stages:
            with self.ledger.read() as tx:
                row = epochs.stage_row(tx, stage)
            snapshots.add_part(self.ledger, row, number, Part(row.head, {}))

    def commit(self, number: int) -> None:
        with self.ledger.read() as tx:
            (found,) = [one for one in snapshots.all_snapshots(tx) if one.number == number]
        snapshots.commit(self.ledger, self.generation, found)

    def done(self, number: int) -> None:
        snapshots.mark_done(self.ledger, self.generation, [number])

    def go_on(self) -> None:
        """An epoch of every stage."""
        for stage in REGION:
            with self.ledger.read() as tx:
                row = epochs.stage_row(tx, stage)
            row, attempt = epochs.record_plan(self.ledger, row, {"ranges": {}})
            epochs.commit_epoch(self.ledger, Commit(row, row.head + 1, attempt, {}, None, {}))


def first_taken(captured: Captured) -> Captured:
    number = captured.begin()
    captured.add(number, *REGION)
    captured.commit(number)
    captured.done(number)
    return captured


def test_a_snapshot_that_is_to_follow_is_begun(tmp_path: Path) -> None:
    captured = first_taken(Captured(tmp_path, -1, 5))
    assert captured.has_work(), "nothing else is under way"
    captured.begin()
    assert not captured.has_work(), "the run does not come as far as its cut"


def test_a_snapshot_of_which_all_parts_are_there_is_committed_also_if_the_stages_have_gone_on(
    tmp_path: Path,
) -> None:
    captured = first_taken(Captured(tmp_path, -1, 0))
    number = captured.begin()
    captured.go_on()
    captured.add(number, "a")
    assert captured.has_work(), "the other stage stands where it is to be cut"
    captured.add(number, "b")
    captured.go_on()
    assert captured.has_work(), "it is not committed"
    captured.commit(number)
    assert captured.has_work(), "the sinks have to publish it"
    captured.done(number)
    assert not captured.has_work()


@pytest.mark.parametrize("cuts", [(), (-1,)])
def test_nothing_follows_the_last_cut(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    assert not first_taken(Captured(tmp_path, *cuts)).has_work()
