"""Looks at the ledger and the target after every write, and says what must never be (DESIGN, section 6).

What it verifies: one manifest an epoch, no gaps, inputs that start where the last ended or what was passed over behind it,
which held no rows (2, 3); nobody who ends because all is done leaves anything unread; generations that
only rise, each of one group, and a new one whenever a member is removed (2); commits of members only (7); a target
that holds every committed epoch once, in order, from generations that never go back (6, 7); nobody replaced, and no
stage orphaned, without a failure; no attempt closed under a member's hands.
What it does not: files, tiers, digests, retention, and how good a decision is: only that it is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.ledger.groups import GroupRow
from sim.store import Chain, View


class Violation(AssertionError):
    """Something that must never be."""


class Checker:
    """Compares each view of the ledger with the one before."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._before = View(0, {}, {}, {}, {})
        self._checked = dict.fromkeys(chain.stages, 0)  # manifests that were found right
        self._owner: dict[int, str] = {}  # the group of a generation
        self._epochs_seen = 0
        self._target_generation = 0
        self._member_since: dict[str, int] = {}  # by worker, in writes
        self._writes = 0
        self._causes: dict[str, str | None] = {}  # why a worker may lose its place
        self.deposed = 0

    def after(self, actor: str, view: View) -> None:
        """Somebody has written."""
        self._writes += 1
        for name, row in view.groups.items():
            before = self._before.groups.get(name)
            if before != row:
                self._check_group(before, row, view)
        for stage in view.stages:
            self._check_passed_over(actor, stage, view)
            self._check_stage(actor, stage, view)
        self._before = view

    def opened(self) -> int:
        """When an attempt was opened, for `closed_by_others`."""
        return self._writes

    def closed_by_others(self, worker: str, opened: int) -> None:
        """A worker that may commit has found its own attempt closed."""
        since = self._member_since.get(worker)
        _ensure(
            since is None or since > opened,
            f"{worker} has been a member since before it opened its attempt, and found it closed",
        )

    def decided(self, worker: str, cause: str | None) -> None:
        """A supervisor means to take a worker's place away; `cause` is what has really happened to that one."""
        self._causes[worker] = cause

    def finished(self, stages: Sequence[str], items: int) -> None:
        """A worker means to end because these stages have nothing left to do."""
        for stage in stages:
            before = self._chain.before.get(stage)
            end = items if before is None else self._before.stages[before].head + 1
            at = self._before.cursors[self._chain.cursor_of[stage]]
            _ensure(at == end, f"{stage} is called idle at {at}, and its input goes up to {end}")

    def fenced_in_target(self, generation: int) -> None:
        """Somebody has opened the target."""
        self._target_generation = max(self._target_generation, generation)

    def seen_in_target(self, epoch: int, generation: int) -> None:
        """An epoch has become visible to the target's readers."""
        fact = self._before.stages.get(self._chain.last)
        _ensure(fact is not None and epoch <= fact.head, f"epoch {epoch} left before it was committed")
        _ensure(epoch == self._epochs_seen, f"the target shows epoch {epoch} after {self._epochs_seen - 1}")
        _ensure(
            generation >= self._target_generation,
            f"generation {generation} published after generation {self._target_generation}",
        )
        self._epochs_seen += 1
        self._target_generation = generation

    def _check_group(self, before: GroupRow | None, row: GroupRow, view: View) -> None:
        owner = self._owner.setdefault(row.generation, row.group)
        _ensure(owner == row.group, f"generation {row.generation} belongs to {owner} and to {row.group}")
        _ensure(row.generation <= view.generation, f"generation {row.generation} was never given")
        _ensure(
            row.primary in row.members if row.primary else not row.members,
            f"{row.group} has primary {row.primary} and members {row.members}",
        )
        members_before = before.members if before else ()
        for worker in {*row.members} - {*members_before}:
            self._member_since[worker] = self._writes
        for worker in {*members_before} - {*row.members}:
            del self._member_since[worker]
            left = row.primary is None
            _ensure(
                left or self._causes.get(worker) is not None, f"{worker} lost its place without a failure"
            )
        if before is None:
            return
        _ensure(row.generation >= before.generation, f"the generation of {row.group} went back")
        _ensure(
            row.generation > before.generation or {*before.members} <= {*row.members},
            f"{row.group} lost members without a new generation: {before.members} -> {row.members}",
        )
        if row.primary != before.primary:
            self._check_succession(before, row, view)

    def _check_succession(self, before: GroupRow, row: GroupRow, view: View) -> None:
        """A primary that is replaced leaves orphans, and only a failure replaces it; one that left leaves none."""
        orphaned = {name for name in row.stages if name in view.stages and view.stages[name].orphaned}
        known = {name for name in row.stages if name in view.stages}
        if before.primary is not None and row.primary is not None:
            self.deposed += 1
            _ensure(orphaned == known, f"{before.primary} was replaced, but {known - orphaned} count as well")
            return
        _ensure(
            all(self._before.stages[name].orphaned for name in orphaned),
            f"{orphaned} were orphaned by a clean stop",
        )

    def _check_passed_over(self, actor: str, stage: str, view: View) -> None:
        """A cursor that has moved without an epoch."""
        cursor = self._chain.cursor_of[stage]
        start, stop = self._before.cursors.get(cursor, 0), view.cursors.get(cursor, 0)
        if start == stop or len(view.manifests[stage]) > self._checked[stage]:
            return
        _ensure(stop > start, f"the cursor of {stage} went back from {start} to {stop}")
        empty = self._chain.empty(stage, start, stop)
        _ensure(empty == stop - start, f"{stage} passes over position {start + empty}, which holds rows")
        members = self._before.groups[self._chain.group_of[stage]].members
        _ensure(actor in members, f"{actor} moved the cursor of {stage}; the members are {members}")

    def _check_stage(self, actor: str, stage: str, view: View) -> None:
        now, before = view.stages[stage], self._before.stages.get(stage)
        group = view.groups[self._chain.group_of[stage]]
        _ensure(
            now.generation == group.generation,
            f"{stage} has generation {now.generation}, its group {group.generation}",
        )
        if before:
            _ensure(now.head >= before.head, f"the head of {stage} went back")
        manifests = view.manifests[stage]
        _ensure(len(manifests) == now.head + 1, f"{stage} has {len(manifests)} manifests, head {now.head}")
        while self._checked[stage] < len(manifests):
            self._check_manifest(actor, stage, view)
            self._checked[stage] += 1

    def _check_manifest(self, actor: str, stage: str, view: View) -> None:
        at = self._checked[stage]
        new = view.manifests[stage][at]
        _ensure(new.epoch == at, f"{stage} has epoch {new.epoch} where {at} belongs")
        start = self._before.cursors.get(self._chain.cursor_of[stage], 0)
        _ensure(new.start == start, f"{stage} epoch {at} reads from {new.start}, and {start} comes next")
        rows = self._chain.empty(stage, new.start, new.stop) < new.stop - new.start
        _ensure(rows, f"{stage} epoch {at} reads nothing")
        cursor = view.cursors[self._chain.cursor_of[stage]]
        _ensure(cursor >= new.stop, f"the cursor of {stage} is at {cursor}, epoch {at} ended at {new.stop}")
        members = self._before.groups[self._chain.group_of[stage]].members
        _ensure(actor in members, f"{actor} committed {stage} epoch {at}; the members are {members}")


def _ensure(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)
