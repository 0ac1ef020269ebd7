"""A flow whose work directory was removed by hand is told of its earlier life, and starts over with `holdfast reset`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import read_sink, write_files
from command import holdfast
from holdfast.runtime.loader import load

FLOW = """
import holdfast as hf

flow = hf.Flow("again")
rows = flow.source("in", hf.files({home!r} + "/in", schema="k long", max_files_per_epoch=1))
totals = rows.group_by("k").agg(n=hf.count()).named("totals")
totals.to(hf.parquet({home!r} + "/out")).to(hf.table("sqlite:///" + {home!r} + "/out.db", "t", key="k"))
"""


def test_after_the_work_directory_was_removed_a_run_names_reset_and_then_is_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "again.py"
    file.write_text(FLOW.format(home=str(tmp_path)))
    write_files(tmp_path / "in", [pa.table({"k": [1, 1]}), pa.table({"k": [1]})])

    def run() -> None:
        load(str(file)).run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)  # type: ignore[attr-defined]

    run()
    run()
    for place in ("work", "out"):
        shutil.rmtree(tmp_path / place)
    named = rf"holdfast reset FLOW --work-dir {tmp_path / 'work'} --targets"
    with pytest.raises(hf.SinkError, match=f"earlier life of this flow.*up to epoch 1.*{named}"):
        run()
    words = ("reset", file, "--work-dir", tmp_path / "work", "--targets")
    shown = holdfast(*words, "--dry-run", "--json").json
    assert [(one["epoch"], one["rows"]) for one in shown["targets"]] == [(1, None), (1, 1)]
    assert holdfast(*words, "--yes").status == 0
    assert not (tmp_path / "work").exists()
    run()
    assert sorted(read_sink(tmp_path / "out")["n"].to_pylist()) == [2, 3]
    shutil.rmtree(tmp_path / "work")
    with pytest.raises(hf.SinkError, match=named):
        run()
