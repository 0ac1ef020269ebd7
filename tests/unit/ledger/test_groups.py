"""Generations are given once, by whoever decides; a worker outside the newest members commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core.errors import FencedError
from holdfast.ledger import epochs, groups, holder, schema
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.groups import GroupRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.process import Process
from registered import register_stage

LAYOUT = {"g": ["s"], "h": ["t"]}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def supervisor(ledger: Ledger) -> int:
    """Decides about two groups of one stage each; `a` is the primary of the first."""
    mine = holder.supervise(ledger, "flow")
    groups.lay_out(ledger, mine, {}, LAYOUT)
    generation = groups.assign(ledger, mine, "g", "a", ["a"], "first")
    register_stage(ledger, generation, "s", None, ["source:in"])
    return mine


def group(ledger: Ledger, name: str = "g") -> GroupRow:
    with ledger.read() as tx:
        row = groups.group_row(tx, name)
    assert row is not None
    return row


def stage(ledger: Ledger, name: str = "s") -> StageRow:
    with ledger.read() as tx:
        return epochs.stage_row(tx, name)


def orphans(ledger: Ledger) -> set[str]:
    with ledger.read() as tx:
        return groups.orphans(tx)


def attempts(ledger: Ledger) -> dict[str, str]:
    table = schema.attempts
    with ledger.read() as tx:
        return {row.attempt: row.status for row in tx.execute(sa.select(table.c.attempt, table.c.status))}


def attempt_of(ledger: Ledger) -> str:
    return epochs.open_attempt(ledger, stage(ledger), "epoch", 0)


def commit(ledger: Ledger, row: StageRow, attempt: str) -> None:
    epochs.commit_epoch(ledger, Commit(row, row.head + 1, attempt, {}, None, {}, {"source:in": (0, 1)}))


def test_a_supervisor_that_was_replaced_decides_nothing_more(ledger: Ledger, supervisor: int) -> None:
    groups.add_worker(ledger, supervisor, "b", "g", "test")
    groups.admit(ledger, supervisor, "g", "b")
    before, other = group(ledger), holder.supervise(ledger, "flow", by_force=True)
    acts: list[Callable[[], object]] = [
        lambda: groups.lay_out(ledger, supervisor, {}, {"all": ["s", "t"]}),
        lambda: groups.assign(ledger, supervisor, "g", "b", ["b"], "late"),
        lambda: groups.admit(ledger, supervisor, "g", "c"),
        lambda: groups.expel(ledger, supervisor, "g", "b", "late"),
        lambda: groups.add_worker(ledger, supervisor, "c", "g", "test"),
        lambda: groups.forget_worker(ledger, supervisor, "b", "late"),
        lambda: holder.resign(ledger, supervisor),
    ]
    for act in acts:
        with pytest.raises(
            FencedError, match=f"supervisor {supervisor} was deposed: supervisor {other} decides"
        ):
            act()
    assert group(ledger) == before
    with ledger.read() as tx:
        assert [row.worker for row in groups.all_workers(tx)] == ["b"]


def test_a_new_supervisor_leaves_the_members_their_places(ledger: Ledger, supervisor: int) -> None:
    row = stage(ledger)
    attempt = attempt_of(ledger)
    other = holder.supervise(ledger, "flow", by_force=True)
    groups.lay_out(ledger, other, {}, LAYOUT)
    commit(ledger, row, attempt)
    assert stage(ledger).head == 0
    assert orphans(ledger) == set()


def test_a_generation_is_given_once(ledger: Ledger, supervisor: int) -> None:
    given = [supervisor, group(ledger).generation, group(ledger, "h").generation]
    given += [groups.assign(ledger, supervisor, name, "x", ["x"], "again") for name in ("g", "h", "g")]
    given.append(holder.supervise(ledger, "flow", by_force=True))
    assert len(set(given)) == len(given)
    assert given[-1] == max(given)


def test_a_fail_over_fences_the_stages_of_its_group_alone(ledger: Ledger, supervisor: int) -> None:
    groups.assign(ledger, supervisor, "h", "b", ["b"], "first")
    register_stage(ledger, group(ledger, "h").generation, "t", None, ["channel:s.out"])
    before, other = stage(ledger), stage(ledger, "t")
    generation = groups.assign(ledger, supervisor, "g", "c", ["c"], "a is gone")
    assert stage(ledger).generation == generation > before.generation
    assert stage(ledger, "t") == other
    with pytest.raises(FencedError):
        epochs.record_plan(ledger, before, {})
    epochs.record_plan(ledger, other, {})


def test_who_was_replaced_writes_nothing_more(ledger: Ledger, supervisor: int) -> None:
    old = group(ledger).generation
    groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    acts: list[Callable[[], object]] = [
        lambda: groups.leave(ledger, old, "a", "finished"),
        lambda: groups.recovered(ledger, old, "s", "replayed"),
        lambda: register_stage(ledger, old, "s", None, []),
        lambda: ledger.refuse_deposed(old),
    ]
    for act in acts:
        with pytest.raises(FencedError, match=f"generation {old} was deposed"):
            act()
    assert group(ledger).primary == "b"
    assert orphans(ledger) == {"s"}


def test_who_is_admitted_shares_the_generation(ledger: Ledger, supervisor: int) -> None:
    before, attempt = stage(ledger), attempt_of(ledger)
    groups.admit(ledger, supervisor, "g", "b")
    groups.admit(ledger, supervisor, "g", "b")
    assert group(ledger) == GroupRow("g", before.generation, ("s",), "a", ("a", "b"))
    commit(ledger, before, attempt)


def test_nobody_is_admitted_beside_a_primary_that_has_left_meanwhile(ledger: Ledger, supervisor: int) -> None:
    groups.leave(ledger, group(ledger).generation, "a", "finished")
    groups.admit(ledger, supervisor, "g", "b")
    assert group(ledger).members == ()


def test_who_is_expelled_is_fenced_by_a_new_generation(ledger: Ledger, supervisor: int) -> None:
    groups.admit(ledger, supervisor, "g", "b")
    before = stage(ledger)
    groups.expel(ledger, supervisor, "g", "b", "b is gone")
    assert stage(ledger).generation == group(ledger).generation > before.generation
    assert group(ledger).members == ("a",)
    with pytest.raises(FencedError):
        epochs.open_attempt(ledger, before, "epoch", 0)


def test_expelling_a_standby_orphans_nothing(ledger: Ledger, supervisor: int) -> None:
    groups.admit(ledger, supervisor, "g", "b")
    groups.expel(ledger, supervisor, "g", "b", "b is gone")
    assert orphans(ledger) == set()


def test_expelling_who_is_no_member_changes_nothing(ledger: Ledger, supervisor: int) -> None:
    before = group(ledger)
    groups.expel(ledger, supervisor, "g", "b", "b is gone")
    assert group(ledger) == before


def test_a_stage_is_orphaned_until_the_successor_has_recovered_it(ledger: Ledger, supervisor: int) -> None:
    assert orphans(ledger) == set()
    generation = groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    assert orphans(ledger) == {"s"}
    groups.recovered(ledger, generation, "s", "replayed")
    assert orphans(ledger) == set()


def test_a_successor_that_dies_before_it_has_recovered_leaves_the_stage_orphaned(
    ledger: Ledger, supervisor: int
) -> None:
    groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    groups.assign(ledger, supervisor, "g", "c", ["c"], "b is gone")
    assert orphans(ledger) == {"s"}


def test_who_stopped_cleanly_leaves_nothing_to_recover(ledger: Ledger, supervisor: int) -> None:
    groups.leave(ledger, group(ledger).generation, "a", "finished")
    assert (group(ledger).primary, group(ledger).members) == (None, ())
    groups.assign(ledger, supervisor, "g", "b", ["b"], "goes on")
    assert orphans(ledger) == set()


def test_hot_standbys_commit_nothing_once_the_primary_has_left(ledger: Ledger, supervisor: int) -> None:
    groups.admit(ledger, supervisor, "g", "b")
    row, attempt = stage(ledger), attempt_of(ledger)
    groups.leave(ledger, row.generation, "a", "finished")
    with pytest.raises(FencedError):
        commit(ledger, row, attempt)
    assert stage(ledger).generation == group(ledger).generation > row.generation
    assert attempts(ledger) == {attempt: "closed"}


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_who_leaves_says_so_in_the_same_transaction(ledger: Ledger, supervisor: int, status: str) -> None:
    groups.add_worker(ledger, supervisor, "a", "g", "test")
    groups.leave(ledger, group(ledger).generation, "a", status)
    with ledger.read() as tx:
        assert [row.status for row in groups.all_workers(tx)] == [status]


def test_who_stops_cleanly_before_it_has_recovered_leaves_the_stage_orphaned(
    ledger: Ledger, supervisor: int
) -> None:
    generation = groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    groups.leave(ledger, generation, "b", "finished")
    assert orphans(ledger) == {"s"}


def test_attempts_of_the_fenced_are_closed(ledger: Ledger, supervisor: int) -> None:
    attempt = attempt_of(ledger)
    groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    assert attempts(ledger) == {attempt: "closed"}


def test_attempts_of_members_that_go_on_stay_open(ledger: Ledger, supervisor: int) -> None:
    groups.admit(ledger, supervisor, "g", "b")
    attempt = attempt_of(ledger)
    groups.assign(ledger, supervisor, "g", "b", ["b"], "a is gone")
    assert attempts(ledger) == {attempt: "open"}
    commit(ledger, stage(ledger), attempt)
    assert attempts(ledger) == {attempt: "committed"}


def test_attempts_of_a_member_that_goes_on_outlive_any_number_of_others(
    ledger: Ledger, supervisor: int
) -> None:
    for worker in ("b", "c", "d"):
        groups.admit(ledger, supervisor, "g", worker)
    attempt = attempt_of(ledger)
    groups.expel(ledger, supervisor, "g", "b", "b is gone")
    groups.expel(ledger, supervisor, "g", "c", "c is gone")
    groups.assign(ledger, supervisor, "g", "d", ["d"], "a is gone")
    commit(ledger, stage(ledger), attempt)
    assert attempts(ledger) == {attempt: "committed"}


def test_groups_that_are_as_they_were_keep_their_members(ledger: Ledger, supervisor: int) -> None:
    before, row = group(ledger), stage(ledger)
    groups.lay_out(ledger, supervisor, {"new": True}, {"g": ("s",), "i": ["t"]})
    assert group(ledger) == before
    assert stage(ledger) == row
    assert orphans(ledger) == set()
    with ledger.read() as tx:
        assert groups.group_row(tx, "h") is None
        assert tx.execute(sa.select(schema.flow.c.plan)).scalar_one() == {"new": True}
    assert group(ledger, "i").members == ()


def test_stages_that_move_to_another_group_are_taken_from_the_first(ledger: Ledger, supervisor: int) -> None:
    before, attempt = stage(ledger), attempt_of(ledger)
    groups.lay_out(ledger, supervisor, {}, {"all": ["s", "t"]})
    assert stage(ledger).generation == group(ledger, "all").generation > before.generation
    assert attempts(ledger) == {attempt: "closed"}
    assert orphans(ledger) == {"s"}
    with pytest.raises(FencedError):
        commit(ledger, before, attempt)


def test_a_process_that_runs_the_flow_alone_has_all_stages(ledger: Ledger, supervisor: int) -> None:
    groups.add_worker(ledger, supervisor, "a", "g", "test")
    before, attempt = stage(ledger), attempt_of(ledger)
    generation = holder.take(ledger, "flow", by_force=True)
    me = holder.worker_name(Process.myself(), generation)
    with ledger.read() as tx:
        assert groups.all_groups(tx) == {holder.MAIN: GroupRow(holder.MAIN, generation, ("s",), me, (me,))}
        assert groups.all_workers(tx) == []
    assert stage(ledger).generation == generation > before.generation
    assert attempts(ledger) == {attempt: "closed"}
    assert orphans(ledger) == {"s"}


def test_a_stage_that_is_new_joins_the_group_that_registers_it(ledger: Ledger, supervisor: int) -> None:
    register_stage(ledger, group(ledger).generation, "new", None, [])
    assert group(ledger).stages == ("s", "new")
    assert group(ledger, "h").stages == ("t",)


def test_a_worker_speaks_for_itself_until_it_is_forgotten(ledger: Ledger, supervisor: int) -> None:
    me = Process.myself()
    groups.add_worker(ledger, supervisor, "b", "g", "test")
    groups.note_process(ledger, "b", me)
    groups.update_worker(ledger, "b", status="ready", rehearsals=3)
    with ledger.read() as tx:
        [row] = groups.all_workers(tx)
        assert groups.processes(tx) == [me]
    assert (row.worker, row.group, row.status, row.process, row.rehearsals) == ("b", "g", "ready", me, 3)
    groups.forget_worker(ledger, supervisor, "b", "it failed")
    groups.update_worker(ledger, "b", status="ready")
    with ledger.read() as tx:
        assert groups.all_workers(tx) == []
