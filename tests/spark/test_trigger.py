"""A flow with a trigger takes rows of its sources once per interval at most: counted in epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import read_sink, write_files
from holdfast.ledger import schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.inputs import number_of_items
from holdfast.ledger.ledger import reading
from holdfast.runtime.worker import Worker

FILES = 6
# Turns of 50 ms in which a stage that did not wait for the trigger would have read what is there.
QUIET_TURNS = 20


def flow_of(home: Path, trigger: str | None) -> hf.Flow:
    flow = hf.Flow("batched", trigger=trigger)
    rows = flow.source("rows", hf.files(str(home / "in"), schema="k long, v long"))
    rows.group_by("k").agg(total=hf.sum("v"), n=hf.count()).named("totals").to(hf.parquet(str(home / "out")))
    return flow


def feed(home: Path, number: int) -> None:
    write_files(home / "in", [pa.table({"k": [number % 2], "v": [number]})], first=number)


def files_found(home: Path) -> int:
    with reading(home / "work") as tx:
        return number_of_items(tx, "rows")


def files_per_epoch(home: Path) -> list[int]:
    """How many files each committed epoch of the stage has read."""
    plans = schema.plans
    with reading(home / "work") as tx:
        committed = sa.select(plans.c.body).where(plans.c.epoch <= stage_row(tx, "totals").head)
        bodies = tx.execute(committed.order_by(plans.c.epoch)).scalars().all()
    return [stop - start for body in bodies for start, stop in body["ranges"].values()]


def run_until(
    flow: hf.Flow, home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, done: Callable[[], bool]
) -> None:
    """Run a flow that waits for more, until the condition holds in one of its turns."""
    turn = Worker._still_a_member

    def looked(worker: Worker) -> bool:
        if worker._rt.progress.sinks and done():
            worker._told.set()
        return turn(worker)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "_still_a_member", looked)
        flow.run(home / "work", spark=spark)


def test_small_files_are_read_in_batches_and_none_is_left_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(tmp_path, 0)
    turns = 0

    def fed_one_by_one() -> bool:
        """Files come one after another, each when the one before has been found; then it is quiet for a while."""
        nonlocal turns
        found = files_found(tmp_path)
        if found < FILES and len(list((tmp_path / "in").iterdir())) == found:
            feed(tmp_path, found)
        turns += found == FILES
        return turns > QUIET_TURNS

    run_until(flow_of(tmp_path, "1 hour"), tmp_path, spark, monkeypatch, fed_one_by_one)
    assert files_per_epoch(tmp_path) == [1], "the first at once, the others wait for the next batch"
    report = flow_of(tmp_path, "1 hour").run(tmp_path / "work", spark=spark, until_idle=True)
    assert files_per_epoch(tmp_path) == [1, FILES - 1], "a run until idle does not wait for the clock"
    assert report.stages["totals"].lag.items == 0

    # Another trigger is no other flow. It comes by the clock alone: nothing else happens while the file waits.
    feed(tmp_path, FILES)
    feed(tmp_path, FILES + 1)

    def all_read() -> bool:
        if files_found(tmp_path) == FILES + 2 and len(list((tmp_path / "in").iterdir())) == FILES + 2:
            feed(tmp_path, FILES + 2)
        return sum(files_per_epoch(tmp_path)) == FILES + 3

    run_until(flow_of(tmp_path, "2 seconds"), tmp_path, spark, monkeypatch, all_read)
    read = files_per_epoch(tmp_path)
    flow_of(tmp_path, None).run(tmp_path / "work", spark=spark, until_idle=True)
    assert files_per_epoch(tmp_path) == read, "nothing is left but to publish"
    last = {row["k"]: row for row in read_sink(tmp_path / "out").sort_by("epoch").to_pylist()}
    fed = range(FILES + 3)
    assert {k: (row["total"], row["n"]) for k, row in last.items()} == {
        k: (sum(v for v in fed if v % 2 == k), sum(v % 2 == k for v in fed)) for k in (0, 1)
    }


def test_draining_does_not_wait_for_the_trigger(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("drained", trigger="1 hour")
    seconds = pa.array([1_000_000 * n for n in range(4)], pa.timestamp("us", tz="UTC"))
    table = pa.table({"k": [1, 1, 2, 2], "ts": seconds})
    rows = flow.source("rows", hf.rows(table, per_epoch=1))
    windows = rows.group_by("k").window("ts", tumbling="1 second").agg(n=hf.count()).named("windows")
    windows.to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", spark=spark, drain=True)
    assert read_sink(tmp_path / "out").num_rows == 4


@pytest.mark.parametrize("rubbish", ["", "0 seconds", "often", "-1 second", 10, "1 month"])
def test_a_trigger_that_is_no_duration_is_refused(rubbish: object) -> None:
    with pytest.raises(hf.PlanError, match="trigger="):
        hf.Flow("f", trigger=rubbish)  # type: ignore[arg-type]
