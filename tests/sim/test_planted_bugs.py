"""The checker sees what it is there for: every rule of the protocols is broken once, and must be found missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.errors import FencedError
from holdfast.ledger import epochs, groups, schema
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.groups import GroupRow
from holdfast.protocols import detector, lock_wait, supervision
from holdfast.protocols.detector import Accounts, Belief, Evidence, Terms, Verdict
from holdfast.sinks import contract
from holdfast.sinks.contract import SinkRecord
from sim import simulation
from sim.checker import Violation
from sim.faults import ALL_KINDS, STANDS_STILL
from sim.model_ledger import ModelLedger
from sim.real_ledger import RealLedger
from sim.store import Backlog, Offer
from sim.supervisor import Supervisor
from sim.worker import Worker
from sim.world import Call, Process, World

SEEDS_MAX = 1_500

Plant = Callable[[pytest.MonkeyPatch], None]


def violation(kinds: frozenset[str]) -> tuple[int, str]:
    """The first schedule that breaks something, and what."""
    for seed in range(SEEDS_MAX):
        try:
            simulation.run(seed, kinds=kinds)
        except Violation as found:
            return seed, str(found).partition("\n")[0]
    raise AssertionError(f"no violation in {SEEDS_MAX} schedules")


def no_generation_at_commits(patch: pytest.MonkeyPatch) -> None:
    def fence(self: ModelLedger, row: StageRow) -> None:
        now = self._stages[row.stage]
        if (now.head, now.plan_version) != (row.head, row.plan_version):
            raise FencedError("refused")

    patch.setattr(ModelLedger, "_fence_stage", fence)


def no_head_at_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLedger, "_fence_stage", ModelLedger._fence_generation)


def supervisors_unfenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLedger, "_fence_supervisor", lambda self, supervisor: None)


def expelled_without_a_new_generation(patch: pytest.MonkeyPatch) -> None:
    def expel(self: ModelLedger, supervisor: int, group: str, worker: str, reason: str) -> None:
        row = self._groups[group]
        self._groups[group] = replace(row, members=tuple(name for name in row.members if name != worker))

    patch.setattr(ModelLedger, "expel", expel)


def left_without_a_new_generation(patch: pytest.MonkeyPatch) -> None:
    def leave(self: ModelLedger, generation: int, worker: str, status: str) -> None:
        row = self._fence(generation)
        self._groups[row.group] = replace(row, primary=None, members=())

    patch.setattr(ModelLedger, "leave", leave)


def left_but_still_a_candidate(patch: pytest.MonkeyPatch) -> None:
    real = ModelLedger.leave
    patch.setattr(ModelLedger, "leave", lambda self, generation, worker, status: real(self, generation, worker, "ready"))  # fmt: skip


def admitted_without_a_primary(patch: pytest.MonkeyPatch) -> None:
    def admit(self: ModelLedger, supervisor: int, group: str, worker: str) -> None:
        self._fence_supervisor(supervisor)
        row = self._groups[group]
        self._groups[group] = replace(row, members=tuple(dict.fromkeys((*row.members, worker))))

    patch.setattr(ModelLedger, "admit", admit)


def attempts_closed_under_survivors(patch: pytest.MonkeyPatch) -> None:
    real = ModelLedger._give_stages
    patch.setattr(ModelLedger, "_give_stages", lambda self, row, kept=None: real(self, row))


def generations_of_each_group(patch: pytest.MonkeyPatch) -> None:
    real = ModelLedger._assign

    def assign(self: ModelLedger, row: GroupRow, primary: str, members: Collection[str]) -> int:
        self._generation = row.generation
        return real(self, row, primary, members)

    patch.setattr(ModelLedger, "_assign", assign)


def nothing_is_orphaned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLedger, "_orphan", lambda self, row: None)


def failed_reads_ignored(patch: pytest.MonkeyPatch) -> None:
    real = detector.judge

    def judge(belief: Belief | None, evidence: Evidence, now_ms: int, terms: Terms) -> tuple[Belief, Verdict]:
        if belief and evidence.counter is None:
            evidence = replace(evidence, counter=belief.counter)
        return real(belief, evidence, now_ms, terms)

    patch.setattr(detector, "judge", judge)


def own_pauses_ignored(patch: pytest.MonkeyPatch) -> None:
    """What a pause makes of an old look, the second look would put right."""
    patch.setattr(limits, "LEASE_LOOK_MS_MAX", 1 << 40)
    patch.setattr(Supervisor, "_is_back", lambda self, action: False)


def waits_for_a_cpu_ignored(patch: pytest.MonkeyPatch) -> None:
    real = detector.accounts

    def accounts(before: Accounts | None, evidence: Evidence, now_ms: int) -> Accounts:
        return replace(real(before, evidence, now_ms), waited_ms=0.0)

    patch.setattr(detector, "accounts", accounts)


def waits_for_a_cpu_that_last_ignored(patch: pytest.MonkeyPatch) -> None:
    real = detector.accounts

    def accounts(before: Accounts | None, evidence: Evidence, now_ms: int) -> Accounts:
        over = {tid: replace(one, runnable=False) for tid, one in (evidence.threads or {}).items()}
        return real(before, replace(evidence, threads=over), now_ms)

    patch.setattr(detector, "accounts", accounts)


def sink_takes_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contract, "admit", lambda last, new: "publish")


def sink_takes_older_generations(patch: pytest.MonkeyPatch) -> None:
    real = contract.admit

    def admit(last: SinkRecord | None, new: SinkRecord) -> str:
        return real(last, replace(new, generation=max(new.generation, last.generation if last else 0)))

    patch.setattr(contract, "admit", admit)


def nobody_is_started_again(patch: pytest.MonkeyPatch) -> None:
    real = supervision.decide

    def decide(group: supervision.Group, workers: Sequence[supervision.Seen]) -> list[supervision.Action]:
        return real(replace(group, wanted=1), workers)

    patch.setattr(supervision, "decide", decide)


def the_dead_are_promoted(patch: pytest.MonkeyPatch) -> None:
    real = supervision.decide

    def decide(group: supervision.Group, workers: Sequence[supervision.Seen]) -> list[supervision.Action]:
        actions = real(group, workers)
        return [
            replace(one, worker=group.primary, members=(group.primary,))
            if isinstance(one, supervision.Promote) and group.primary
            else one
            for one in actions
        ]

    patch.setattr(supervision, "decide", decide)


def nothing_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    def pass_over(self: Worker, offer: Offer) -> Call[bool]:
        yield 0, ""
        return False

    patch.setattr(Worker, "_pass_over", pass_over)


def passed_over_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelLedger, "pass_over", lambda self, row, reads: self._move_cursor(row.stage, reads))


def passed_over_without_a_new_plan_version(patch: pytest.MonkeyPatch) -> None:
    def pass_over(self: ModelLedger, row: StageRow, reads: tuple[int, int]) -> None:
        self._fence_stage(row)
        self._move_cursor(row.stage, reads)

    patch.setattr(ModelLedger, "pass_over", pass_over)


def rows_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    real = ModelLedger.offer

    def offer(self: ModelLedger, stage: str, generation: int) -> Offer | None:
        found = real(self, stage, generation)
        return replace(found, empty=found.available) if found and found.empty else found

    patch.setattr(ModelLedger, "offer", offer)


def idle_before_what_holds_no_rows(patch: pytest.MonkeyPatch) -> None:
    real = ModelLedger.backlog

    def backlog(self: ModelLedger) -> Backlog:
        found = real(self)
        at = {stage: self._cursors.get(self._chain.cursor_of[stage], 0) for stage in found.unread}
        waits = {s: n and not self._chain.empty(s, at[s], at[s] + n) for s, n in found.unread.items()}
        return replace(found, unread={stage: found.unread[stage] if waits[stage] else 0 for stage in waits})

    patch.setattr(ModelLedger, "backlog", backlog)


def sinks_ahead_of_their_opening(patch: pytest.MonkeyPatch) -> None:
    """Records carry the group's generation, though the target was opened by the one before."""
    patch.setattr(Worker, "_publishes_as", lambda self, opening: self._generation or opening.generation)


def only_a_primarys_lock_is_freed(patch: pytest.MonkeyPatch) -> None:
    def may_be_ended(self: World, holder: Process) -> bool:
        groups, _ = self.store.groups_and_workers()
        return holder.name in {row.primary for row in groups.values()}

    patch.setattr(World, "may_be_ended", may_be_ended)


def nobody_looks_at_the_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lock_wait, "look", lambda before, holder, version, waited_ms: None)


# What is too rare among all faults together is looked for among the ones that bring it about.
STOPS_AND_PAUSES = frozenset({"worker stop", "supervisor pause"})
SECOND_SUPERVISORS = frozenset({"supervisor second", "worker deaf", "worker pause"})
ZOMBIES = frozenset({"worker pause", "worker deaf"})
PAUSES_OF_THE_JUDGE = frozenset({"supervisor pause"})
EXPULSIONS = frozenset({"worker crash", "worker fail", "worker stop"})
STANDING_STILL = frozenset({f"worker {STANDS_STILL}"})

PLANTED = [
    (no_generation_at_commits, "committed .* the members are", ZOMBIES),
    (no_head_at_commits, "does not start at", ALL_KINDS),
    (supervisors_unfenced, "lost its place without a failure|has primary", SECOND_SUPERVISORS),
    (expelled_without_a_new_generation, "lost members without a new generation", ALL_KINDS),
    (left_without_a_new_generation, "lost members without a new generation", ALL_KINDS),
    (left_but_still_a_candidate, "lost its place without a failure", ALL_KINDS),
    (admitted_without_a_primary, "has primary None and members", STOPS_AND_PAUSES),
    (attempts_closed_under_survivors, "found it closed", ALL_KINDS),
    (generations_of_each_group, "belongs to g. and to g.", ALL_KINDS),
    (nothing_is_orphaned, "was replaced, but .* count as well", ALL_KINDS),
    (failed_reads_ignored, "lost its place without a failure", ALL_KINDS),
    (own_pauses_ignored, "lost its place without a failure", PAUSES_OF_THE_JUDGE),
    (waits_for_a_cpu_ignored, "lost its place without a failure", ALL_KINDS),
    (waits_for_a_cpu_that_last_ignored, "lost its place without a failure", ALL_KINDS),
    (nothing_is_passed_over, "not settled .* unread", ALL_KINDS),
    (passed_over_without_a_fence, "does not start at|moved the cursor of", ALL_KINDS),
    (passed_over_without_a_new_plan_version, "does not start at", ALL_KINDS),
    (rows_are_passed_over, "passes over position .* which holds rows", ALL_KINDS),
    (idle_before_what_holds_no_rows, "is called idle at", ALL_KINDS),
    (sink_takes_anything, "the target shows epoch", ALL_KINDS),
    (sink_takes_older_generations, "published after generation|the target is ahead", ALL_KINDS),
    (sinks_ahead_of_their_opening, "may drive the sink, but: .* was opened by generation", EXPULSIONS),
    (only_a_primarys_lock_is_freed, "not settled", STANDING_STILL),
    (nobody_looks_at_the_lock, "not settled", STANDING_STILL),
    (nobody_is_started_again, "not settled", ALL_KINDS),
    (the_dead_are_promoted, "not settled|lost its place", ALL_KINDS),
]


@pytest.mark.parametrize(
    ("plant", "found", "kinds"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)
def test_a_planted_bug_is_found(
    plant: Plant, found: str, kinds: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    _, message = violation(kinds)
    assert re.search(found, message), message


def real_fence_without_the_generation(patch: pytest.MonkeyPatch) -> None:
    def fence(tx: sa.Connection, row: StageRow, **values: int) -> None:
        table = schema.stages
        own = (table.c.stage == row.stage, table.c.head == row.head, table.c.plan_version == row.plan_version)
        if tx.execute(sa.update(table).where(*own).values(**values)).rowcount != 1:
            raise FencedError("refused")

    patch.setattr(epochs, "fence_stage", fence)


def real_orphans_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "_orphan", lambda tx, row: None)


REAL_PLANTED = [
    (no_generation_at_commits, real_fence_without_the_generation, ZOMBIES),
    (nothing_is_orphaned, real_orphans_forgotten, ALL_KINDS),
]


@pytest.mark.parametrize(
    ("plant", "real_plant", "kinds"), REAL_PLANTED, ids=[plant.__name__ for _, plant, _ in REAL_PLANTED]
)
def test_the_same_bug_in_the_real_ledger_is_found_by_the_same_seed(
    plant: Plant, real_plant: Plant, kinds: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seed, found = violation(kinds)
    real_plant(monkeypatch)
    with pytest.raises(Violation, match=re.escape(found)):
        simulation.run(seed, lambda chain, _: RealLedger(chain, tmp_path), kinds)
