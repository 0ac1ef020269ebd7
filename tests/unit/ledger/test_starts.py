"""Where stages and sinks begin: behind what is no longer kept, which they are told of, and never in a race with the sweeper."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.flow.on_stage import NOW, OLDEST
from holdfast.ledger import epochs, files, holder, inputs, schema
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.sink_starts import start_of
from holdfast.ledger.starts import NOT_SEEN, begin_sink
from holdfast.runtime.following import Follower
from registered import register_stage

CHANNEL = "channel:a.out"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A stage with epochs of 2, 0, 3 and 0 rows, the last of which are kept."""
    made = Ledger(tmp_path)
    generation = holder.take(made, "flow")
    register_stage(made, generation, "a", None, ["source:in"])
    inputs.add_items(made, generation, {"in": [Item(str(at), 1, 1, {}) for at in range(9)]})
    for rows in (2, 0, 3, 0):
        commit(made, rows)
    trim(made, 1)
    return made


def row_of(ledger: Ledger, stage: str = "a") -> StageRow:
    with ledger.read() as tx:
        return epochs.stage_row(tx, stage)


def commit(ledger: Ledger, rows: int) -> None:
    at = row_of(ledger).head + 1
    row, attempt = epochs.record_plan(ledger, row_of(ledger), {"ranges": {"source:in": [at, at + 1]}})
    segments = {"out": {"rows": rows, "bytes": 1, "files": []}} if rows else {}
    manifest = {"rows_out": {"out": rows}}
    moves = {"source:in": (at, at + 1)}
    epochs.commit_epoch(ledger, Commit(row, at, attempt, manifest, None, segments, moves))


def trim(ledger: Ledger, below: int) -> None:
    """As the sweeper does."""
    with ledger.read() as tx:
        found = [segment.id for segment in inputs.segments(tx, "a", "out", 0, below)]
    files.condemn(ledger, row_of(ledger), [], found)


def position(ledger: Ledger, consumer: str, name: str = CHANNEL) -> int:
    with ledger.read() as tx:
        return inputs.processed(tx, consumer, name)


def told(ledger: Ledger) -> list[str]:
    table = schema.events
    with ledger.read() as tx:
        return list(tx.execute(sa.select(table.c.reason).where(table.c.kind == NOT_SEEN)).scalars())


def register(ledger: Ledger, stage: str, name: str = CHANNEL, read_from: str = OLDEST) -> None:
    register_stage(ledger, row_of(ledger).generation, stage, None, [name], read_from=read_from)


def put_sink(ledger: Ledger) -> None:
    generation = row_of(ledger).generation
    with ledger.write(generation) as tx:
        begin_sink(tx, "out", "a", CHANNEL, generation)


def test_a_new_stage_starts_behind_the_last_rows_that_are_gone(ledger: Ledger) -> None:
    register(ledger, "b")
    assert position(ledger, "stage:b") == 1
    (said,) = told(ledger)
    assert said == (
        "reads on from epoch 1 of channel:a.out, as it finds the rest no longer kept; 2 rows of epochs 0 to 0 it has not seen"
    )
    register(ledger, "b")
    assert len(told(ledger)) == 1  # known by now


def test_who_watches_the_run_is_told(ledger: Ledger) -> None:
    follower = Follower()
    follower.read(ledger)
    register(ledger, "b")
    follower.read(ledger)
    (notice,) = follower.progress.notices
    assert (notice.kind, notice.reason) == (NOT_SEEN, f"stage b: {told(ledger)[0]}")


def test_a_new_stage_that_is_to_start_now_leaves_out_what_is_kept_too(ledger: Ledger) -> None:
    register(ledger, "b", read_from=NOW)
    assert position(ledger, "stage:b") == 4
    assert "5 rows of epochs 0 to 2 it has not seen" in told(ledger)[0]
    register(ledger, "c", "source:in", NOW)
    assert position(ledger, "stage:c", "source:in") == 9
    register(ledger, "d", "source:in")
    assert position(ledger, "stage:d", "source:in") == 0


def test_where_nothing_is_missed_nothing_is_said(ledger: Ledger) -> None:
    register(ledger, "b", "channel:a.late")
    register(ledger, "c", "channel:unknown.out")
    assert (position(ledger, "stage:b", "channel:a.late"), told(ledger)) == (0, [])


def test_what_is_older_than_the_history_is_counted_as_far_as_it_is_known(ledger: Ledger) -> None:
    files.fold_history(ledger, row_of(ledger), 2)
    trim(ledger, 3)
    register(ledger, "b")
    assert position(ledger, "stage:b") == 3
    assert "at least 3 rows of epochs 0 to 2" in told(ledger)[0]


def test_a_stage_that_is_put_back_plans_anew_from_what_is_kept(ledger: Ledger) -> None:
    register(ledger, "b")
    row, attempt = epochs.record_plan(ledger, row_of(ledger, "b"), {"ranges": {CHANNEL: [1, 3]}})
    commit(ledger, 4)
    trim(ledger, 3)
    register(ledger, "b")
    assert position(ledger, "stage:b") == 3
    assert "3 rows of epochs 2 to 2 it has not seen" in told(ledger)[-1]
    with ledger.read() as tx:
        assert epochs.open_plan(tx, row_of(ledger, "b")) is None
    with pytest.raises(epochs.FencedError):
        epochs.commit_epoch(ledger, Commit(row, 0, attempt, {}, None, {}, {CHANNEL: (1, 3)}))


def test_a_stage_that_is_put_back_and_finds_everything_goes_on_where_it_stood(ledger: Ledger) -> None:
    register(ledger, "b")
    commit(ledger, 4)
    register(ledger, "b")
    assert (position(ledger, "stage:b"), len(told(ledger))) == (1, 1)


def test_a_new_sink_and_one_that_is_put_back_are_told_what_they_are_not_given(ledger: Ledger) -> None:
    put_sink(ledger)
    assert position(ledger, "sink:out") == 4
    assert "5 rows of epochs 0 to 2" in told(ledger)[0]
    commit(ledger, 6)
    commit(ledger, 7)
    trim(ledger, 5)
    put_sink(ledger)
    # It is given epochs without rows for what is gone, so that its target's record has no gap.
    assert position(ledger, "sink:out") == 4
    assert "given rows from epoch 5 of channel:a.out on" in told(ledger)[1]
    assert "6 rows of epochs 4 to 4" in told(ledger)[1]
    with ledger.read() as tx:
        assert start_of(tx, "out") == 4


def test_a_stage_that_begins_while_the_sweeper_is_on_its_way_keeps_what_it_was_promised(
    ledger: Ledger,
) -> None:
    with ledger.read() as tx:
        found = [segment.id for segment in inputs.segments(tx, "a", "out", 0, 4)]
    register(ledger, "b")

    def needed_from(tx: sa.Connection) -> int:
        return int(
            tx.execute(
                sa.select(schema.cursors.c.needed).where(schema.cursors.c.consumer == "stage:b")
            ).scalar_one()
        )

    files.condemn(ledger, row_of(ledger), [], found, needed_from)
    with ledger.read() as tx:
        assert [segment.epoch for segment in inputs.segments(tx, "a", "out", 0, 4)] == [2]
