"""Dedup at the door: `ids=` of a source lets each id through once, whatever the epochs, the tasks and the way in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_way, read_sink, source
from event_time import at
from holdfast.core.errors import PlanError
from holdfast.flow.explain import explain
from holdfast.flow.planner import plan
from holdfast.ledger.status import status
from holdfast.runtime.snapshot import look


def table(rows: int, ids: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, ids, rows), rng.integers(0, 3, rows)
    return pa.table({"n": np.arange(rows), "a": pa.array(a, mask=a == 0), "b": pa.array(b).cast(pa.string())})


def identities(rows: pa.Table) -> list[tuple[object, object]]:
    return list(zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True))


@pytest.mark.parametrize(("way", "bits", "per_epoch", "tasks"), [("spark", 8, 60, 3), ("direct", 64, 45, 2)])
def test_each_id_goes_through_once_ever(
    spark: SparkSession, tmp_path: Path, way: str, bits: int, per_epoch: int, tasks: int
) -> None:
    rows = table(300, 40, 3)
    flow = hf.Flow("ever")
    unique = flow.source("rows", source(tmp_path, rows, per_epoch, way), ids=["a", "b"])
    unique.to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", spark=spark, until_idle=True, tasks=tasks, hash_bits=bits)
    assert_way(tmp_path / "work", "rows-ids", way)
    out = read_sink(tmp_path / "out")
    assert sorted(map(str, identities(out))) == sorted(map(str, set(identities(rows))))
    # A row goes through in the first epoch that has its id.
    first = {pair: n // per_epoch for n, pair in reversed(list(enumerate(identities(rows))))}
    epochs = [first[pair] for pair in identities(out)]
    assert epochs == out["epoch"].to_pylist()
    found = status(tmp_path / "work")["stages"]["rows-ids"]
    assert found["state_rows"] == out.num_rows
    assert found["aside"] == {"duplicates": 300 - out.num_rows}
    _, state = look(tmp_path / "work", "rows-ids", None, lambda s: pa.concat_tables(s.rows()))
    assert state.column_names == ["id_hash", "id_digest", "epoch"]
    assert sorted(state["epoch"].to_pylist()) == sorted(out["epoch"].to_pylist())


def test_with_time_and_within_an_id_may_come_again_later(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": ["x", "x", "y", "x"], "n": [0, 1, 2, 3], "ts": at(0, 1, 20, 21)})
    flow = hf.Flow("within")
    unique = flow.source("rows", hf.rows(rows, per_epoch=1), ids="id", time="ts", within="10 seconds")
    unique.group_by("id").agg(n=hf.count()).named("totals").to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", spark=spark, until_idle=True)
    found = read_sink(tmp_path / "out")
    newest = dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert (newest["x"], newest["y"], found.num_rows) == (2, 1, 3)


def test_what_a_source_sets_aside_is_still_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 1}\nno\n{"id": 2}\n')
    flow = hf.Flow("aside")
    files = hf.files(str(tmp_path / "in"), schema="id int", format="json", on_error="quarantine")
    unique = flow.source("rows", files, ids="id").quarantine_to(hf.parquet(str(tmp_path / "bad")))
    unique.to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", spark=spark, until_idle=True)
    assert sorted(read_sink(tmp_path / "out")["id"].to_pylist()) == [1, 2]
    assert read_sink(tmp_path / "bad")["row"].to_pylist() == ["no"]


def test_unknown_columns_are_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    flow = hf.Flow("unknown")
    rows = hf.rows(table(3, 2, 0), per_epoch=1)
    flow.source("rows", rows, ids="id").to(hf.discard())
    with pytest.raises(PlanError, match=r"rows-ids.*there is no column 'id'.*columns are n, a, b"):
        flow.run(tmp_path / "work", spark=spark, until_idle=True)
    flow = hf.Flow("unknown")
    flow.source("rows", rows, ids="n", time="ts", within="1 day").to(hf.discard())
    with pytest.raises(PlanError, match="there is no time column 'ts'"):
        flow.run(tmp_path / "other", spark=spark, until_idle=True)


def test_what_is_described_wrongly_is_refused() -> None:
    rows = hf.rows(table(3, 2, 0), per_epoch=1)
    for says, options in (
        ("each needs the other", {"ids": "a", "within": "1 day"}),
        ("each needs the other", {"ids": "a", "time": "ts"}),
        ("which are for ids=", {"time": "ts", "within": "1 day"}),
        ("id columns, each once", {"ids": []}),
        ("id columns, each once", {"ids": ["a", "a"]}),
    ):
        with pytest.raises(PlanError, match=says):
            hf.Flow("wrong").source("rows", rows, **options)  # type: ignore[arg-type]


def test_explain_shows_the_door() -> None:
    flow = hf.Flow("door")
    flow.source("rows", hf.rows(table(3, 2, 0), per_epoch=1), ids="a").to(hf.discard())
    (stage,) = explain(plan(flow))["stages"]
    assert (stage["name"], stage["reads"]) == ("rows-ids", ["source:rows"])
    assert stage["operator"] == {"kind": "dedup", "ids": ["a"], "within": "ever", "time": None}
