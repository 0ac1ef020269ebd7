"""Snapshots, the return to one, and branches: fenced, whole or not at all, and nothing undone is taken for its successor."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.core.errors import FencedError, LedgerError
from holdfast.ledger import branches, epochs, files, groups, holder, inputs, schema, snapshots, starts
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.offers import offered_epochs
from holdfast.ledger.returning import return_to
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols.snapshots import Part
from registered import register_stage

READS = {"a": "source:in", "b": "channel:a.out", "after": "channel:b.out"}
REGION = ("a", "b")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two stages that snapshots capture, a sink of the second, and a stage outside that reads it, in two groups."""
    made = Ledger(tmp_path)
    supervisor = holder.supervise(made, "flow")
    groups.lay_out(made, supervisor, {}, {"g": ["a"], "h": ["b", "after"]})
    for group, worker in (("g", "w1"), ("h", "w2")):
        generation = groups.assign(made, supervisor, group, worker, [worker], "first")
        own = group_stages(made, group)
        for stage in own:
            register_stage(made, generation, stage, None, [READS[stage]])
        with made.write(generation) as tx:
            snapshots.set_region(tx, own, [stage for stage in own if stage in REGION])
            if "b" in own:
                starts.add_cursor(tx, "sink:out", "channel:b.out", 0)
    return made


def group_stages(ledger: Ledger, group: str) -> tuple[str, ...]:
    with ledger.read() as tx:
        return groups.all_groups(tx)[group].stages


def generation(ledger: Ledger, group: str = "g") -> int:
    with ledger.read() as tx:
        return groups.all_groups(tx)[group].generation


def row_of(ledger: Ledger, stage: str) -> StageRow:
    with ledger.read() as tx:
        return epochs.stage_row(tx, stage)


def commit(ledger: Ledger, stage: str, times: int = 1) -> StageRow:
    """Epochs that read one position each."""
    row = row_of(ledger, stage)
    for _ in range(times):
        with ledger.read() as tx:
            at = inputs.processed(tx, f"stage:{stage}", READS[stage])
        row, attempt = epochs.record_plan(ledger, row, {"ranges": {READS[stage]: [at, at + 1]}})
        segment = {"rows": 1, "bytes": 1, "files": []}
        moves = {READS[stage]: (at, at + 1)}
        manifest = {"rows_out": {"out": 1}}
        layer = {"rows": 1, "bytes": 10, "runs": []}
        commit_of = Commit(row, row.head + 1, attempt, manifest, layer, {"out": segment}, moves)
        row = epochs.commit_epoch(ledger, commit_of)
    return row


def take(ledger: Ledger, number: int, stage: str) -> None:
    with ledger.read() as tx:
        row = epochs.stage_row(tx, stage)
        found = snapshots.standing(tx, row)
    snapshots.add_part(ledger, row, number, Part(found.head, found.positions))


def all_of(ledger: Ledger, *statuses: str) -> list[Snapshot]:
    with ledger.read() as tx:
        return snapshots.all_snapshots(tx, *statuses)


def complete(ledger: Ledger, mode: str = "unaligned") -> Snapshot:
    """A snapshot of where the stages are."""
    number = snapshots.begin(ledger, generation(ledger), mode)
    for stage in REGION:
        take(ledger, number, stage)
    (found,) = [one for one in all_of(ledger, "preparing") if one.number == number]
    snapshots.commit(ledger, generation(ledger), found)
    return found


def returned(ledger: Ledger, snapshot: Snapshot, group: str = "g") -> dict[str, int]:
    own = [stage for stage in group_stages(ledger, group) if stage in REGION]
    with ledger.write(generation(ledger, group)) as tx:
        return return_to(tx, snapshot, own, "test")


def dumped(ledger: Ledger) -> dict[str, list[sa.Row]]:  # type: ignore[type-arg]
    with ledger.read() as tx:
        return {table.name: list(tx.execute(sa.select(table))) for table in schema.metadata.sorted_tables}


def move_sink(ledger: Ledger, start: int, stop: int) -> None:
    inputs.move_cursor(ledger, generation(ledger, "h"), "sink:out", "channel:b.out", start, stop)


def test_a_part_is_refused_if_the_stage_has_gone_on_or_is_planning(ledger: Ledger) -> None:
    number = snapshots.begin(ledger, generation(ledger), "aligned")
    before = row_of(ledger, "a")
    epochs.record_plan(ledger, before, {"ranges": {}})
    with pytest.raises(FencedError):
        snapshots.add_part(ledger, before, number, Part(-1, {}))
    before = commit(ledger, "a")
    commit(ledger, "a")
    with pytest.raises(FencedError):
        snapshots.add_part(ledger, before, number, Part(0, {}))
    assert all_of(ledger)[0].parts == {}


def test_a_part_of_a_replaced_worker_is_refused(ledger: Ledger) -> None:
    number = snapshots.begin(ledger, generation(ledger), "aligned")
    row = row_of(ledger, "a")
    groups.assign(ledger, holder.supervisor(ledger), "g", "w3", ["w3"], "lost")
    with pytest.raises(FencedError):
        snapshots.add_part(ledger, row, number, Part(-1, {}))


def test_a_part_is_added_once_and_the_first_stays(ledger: Ledger) -> None:
    number = snapshots.begin(ledger, generation(ledger), "aligned")
    take(ledger, number, "a")
    commit(ledger, "a")
    take(ledger, number, "a")
    assert all_of(ledger)[0].parts == {"a": Part(-1, {"source:in": 0})}


def test_a_snapshot_that_is_over_gets_no_more_parts(ledger: Ledger) -> None:
    """Its number may be given again, and then it would have a part of another time."""
    gone = snapshots.begin(ledger, generation(ledger), "aligned")
    with ledger.unfenced_write() as tx:
        snapshots.delete(tx, gone)
    take(ledger, gone, "a")
    assert snapshots.begin(ledger, generation(ledger), "aligned") == gone
    assert all_of(ledger)[0].parts == {}


def test_a_dropped_snapshot_is_not_committed_by_one_who_looked_before(ledger: Ledger) -> None:
    """Other threads of a worker may have learned of its new generation since, so that the fence lets it in."""
    first = complete(ledger)
    commit(ledger, "a")
    number = snapshots.begin(ledger, generation(ledger), "aligned")
    for stage in REGION:
        take(ledger, number, stage)
    (seen,) = all_of(ledger, "preparing")
    returned(ledger, first, "h")
    snapshots.commit(ledger, generation(ledger), seen)
    assert [(one.number, one.status) for one in all_of(ledger)] == [(0, "committed"), (1, "aborted")]


def test_what_is_asked_for_begins_before_anything_with_a_later_number(ledger: Ledger) -> None:
    with ledger.unfenced_write() as tx:
        wish, next_wish = snapshots.ask(tx, "mine"), snapshots.ask(tx, None)
    begun = [snapshots.begin(ledger, generation(ledger), "aligned") for _ in range(3)]
    assert begun == [wish, next_wish, 2]
    assert [(one.asked, one.mode) for one in all_of(ledger)] == [
        (True, "aligned"), (True, "aligned"), (False, "aligned"),
    ]  # fmt: skip


def test_what_leaves_a_region_is_what_a_complete_snapshot_covers(ledger: Ledger) -> None:
    def released(stage: str) -> int:
        with ledger.read() as tx:
            return snapshots.released(tx, epochs.stage_row(tx, stage))

    commit(ledger, "a", 2)
    commit(ledger, "b")
    assert (released("a"), released("b")) == (-1, -1)
    complete(ledger)
    commit(ledger, "a")
    number = snapshots.begin(ledger, generation(ledger), "unaligned")
    take(ledger, number, "a")
    assert (released("a"), released("b")) == (1, 0)
    assert released("after") == row_of(ledger, "after").head


def test_the_return_moves_all_stages_cursors_and_generations_at_once(ledger: Ledger) -> None:
    commit(ledger, "a", 3)
    commit(ledger, "b")
    snapshot = complete(ledger)
    commit(ledger, "a")
    commit(ledger, "b", 2)
    files.settle(ledger, row_of(ledger, "a"), {"disk": 3}, {})
    open_row, attempt = epochs.record_plan(ledger, row_of(ledger, "b"), {"ranges": {}})
    number = snapshots.begin(ledger, generation(ledger), "unaligned")
    ours, theirs = generation(ledger), generation(ledger, "h")

    assert returned(ledger, snapshot) == {"a": 1, "b": 2}
    a, b = row_of(ledger, "a"), row_of(ledger, "b")
    assert (a.branch, a.head, b.branch, b.head) == (1, 2, 1, 0)
    assert (a.generation, b.generation > theirs) == (ours, True)
    with ledger.read() as tx:
        assert inputs.processed(tx, "stage:a", "source:in") == 3
        assert inputs.processed(tx, "stage:b", "channel:a.out") == 1
        assert files.safe_point(tx, "a", "disk") == 2
        assert epochs.open_plan(tx, b) is None
        assert [unit.position for unit in offered_epochs(tx, "a", "out", 0).units] == [0, 1, 2]
    assert [one.number for one in all_of(ledger, "aborted")] == [number]
    with pytest.raises(FencedError):
        epochs.commit_epoch(ledger, Commit(open_row, open_row.head + 1, attempt, {}, None, {}, {}))


def test_what_is_undone_is_condemned_and_its_numbers_are_used_again_under_a_new_branch(
    ledger: Ledger,
) -> None:
    commit(ledger, "a")
    snapshot = complete(ledger)
    commit(ledger, "a", 2)
    returned(ledger, snapshot)
    commit(ledger, "a")
    table = schema.segments
    with ledger.read() as tx:
        of_a = sa.select(table.c.epoch, table.c.branch, table.c.status).where(table.c.stage == "a")
        found = {tuple(row) for row in tx.execute(of_a)}
    assert found == {(0, 1, "live"), (1, 0, "condemned"), (2, 0, "condemned"), (1, 1, "live")}


@pytest.mark.parametrize("ahead", ["sink:out", "stage:after"])
def test_a_return_below_what_has_left_is_refused_and_changes_nothing(ledger: Ledger, ahead: str) -> None:
    commit(ledger, "a", 2)
    commit(ledger, "b")
    snapshot = complete(ledger)
    commit(ledger, "b")
    commit(ledger, "after", 2 if ahead == "stage:after" else 0)
    if ahead == "sink:out":
        move_sink(ledger, 0, 2)
    before = dumped(ledger)
    with pytest.raises(
        LedgerError, match=f"{ahead} has had epoch 1 of stage 'b', and the snapshot ends at 0"
    ):
        returned(ledger, snapshot)
    assert dumped(ledger) == before


def test_a_return_to_what_has_just_left_is_allowed(ledger: Ledger) -> None:
    commit(ledger, "a", 2)
    commit(ledger, "b", 2)
    snapshot = complete(ledger)
    move_sink(ledger, 0, 2)
    commit(ledger, "a")
    assert returned(ledger, snapshot) == {"a": 1, "b": 0}


def test_an_epoch_is_shared_by_every_branch_that_began_at_or_after_it(ledger: Ledger) -> None:
    """Branch 1 begins at epoch 2, branch 2 at epoch 1, branch 3 at epoch 4: what 2 undid of 1 stays undone."""

    def back_to(epoch: int) -> None:
        with ledger.unfenced_write() as tx:
            branches.begin(tx, epochs.stage_row(tx, "a"), epoch, "test")

    commit(ledger, "a", 4)
    back_to(2)
    commit(ledger, "a", 3)
    back_to(1)
    commit(ledger, "a", 4)
    back_to(4)
    row = row_of(ledger, "a")
    assert row.branch == 3
    with ledger.read() as tx:
        shared = {
            branch: [epoch for epoch in range(7) if branches.is_shared(tx, row, branch, epoch)]
            for branch in range(5)
        }
    assert shared == {0: [0, 1], 1: [0, 1], 2: [0, 1, 2, 3, 4], 3: [0, 1, 2, 3, 4, 5, 6], 4: []}


def test_files_stay_for_the_newest_complete_snapshot_and_for_those_asked_for(ledger: Ledger) -> None:
    with ledger.unfenced_write() as tx:
        snapshots.ask(tx, "mine")
    for _ in range(4):
        commit(ledger, "a")
        complete(ledger)
    commit(ledger, "a")
    number = snapshots.begin(ledger, generation(ledger), "unaligned")
    take(ledger, number, "a")
    with ledger.read() as tx:
        assert [part.epoch for part in snapshots.restorable(tx, "a")] == [0, 3]
        newest = snapshots.newest_part(tx, "a")
        assert newest is not None
        assert newest.epoch == 4
        last = snapshots.last_complete(tx, REGION)
        assert last is not None
        assert last.parts["a"].epoch == 3
        assert snapshots.last_complete(tx, [*REGION, "after"]) is None


def test_a_region_that_changes_forgets_its_snapshots_and_one_that_does_not_keeps_them(ledger: Ledger) -> None:
    complete(ledger)
    with ledger.write(generation(ledger)) as tx:
        snapshots.set_region(tx, ["a"], ["a"])
    assert len(all_of(ledger)) == 1
    with ledger.write(generation(ledger)) as tx:
        snapshots.set_region(tx, ["a"], [])
    assert all_of(ledger) == []
    with ledger.read() as tx:
        assert snapshots.region(tx) == {"b"}
        assert tx.execute(sa.select(schema.snapshot_parts)).all() == []


def test_a_snapshot_counts_the_bytes_since_the_one_before(ledger: Ledger) -> None:
    commit(ledger, "a", 2)
    complete(ledger)
    commit(ledger, "a")
    complete(ledger)
    assert [one.bytes for one in all_of(ledger)] == [{"a": 22, "b": 0}, {"a": 11, "b": 0}]
