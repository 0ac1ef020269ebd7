"""The example's source and sink, as a user would test and run them."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.flow.own_edges import own_sink, own_source
from holdfast.runtime.flow import Flow
from holdfast.testing import Origin, SourceSuite, Target
from holdfast.testing.epochs import SCHEMA
from pages import blocks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_edges.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_edges", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OWN = example()


class TestLines(SourceSuite):
    def origin(self, place: Path) -> Origin:
        def put(rows: pa.Table) -> None:
            with place.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())

        return Origin(lambda: OWN.Lines(str(place)), put)


def read(place: Path) -> pa.Table:
    with closing(sqlite3.connect(f"{place}.db")) as db:
        made = db.execute("select 1 from sqlite_master where name = 'rows'").fetchone()
        found = db.execute("select n, text from rows").fetchall() if made else []
    return pa.table([[n for n, _ in found], [text for _, text in found]], schema=SCHEMA)


def suite_of_the_page() -> type:
    """The class that docs/EDGES.md shows, with the example's sink as one's own."""
    (code,) = blocks(ROOT / "docs" / "EDGES.md", "python")
    names = {"MySink": lambda place, schema: OWN.Table(f"{place}.db", schema), "read": read}
    exec(code, names)
    return names["TestMySink"]


class TestTable(suite_of_the_page()):  # type: ignore[misc]
    tears = 12

    def target(self, schema: pa.Schema, place: Path) -> Target:
        if schema.names != SCHEMA.names:
            pytest.skip("the table has two columns of its own")
        return super().target(schema, place)


def test_a_flow_of_ones_own_edges_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = example().flow
    for start in (0, 10, 20):
        with open("lines.jsonl", "a") as file:
            file.writelines(f'{{"n": {n}, "text": "t{n}"}}\n' for n in range(start, start + 10))
            file.write('{"n": ' if start == 20 else "")  # a line that is not whole yet
        flow.run("work", spark=spark, until_idle=True)
        rows = example().written()
        assert sorted(rows["n"].to_pylist()) == list(range(0, start + 10, 2))
    assert os.path.exists("scores.db")


def test_what_is_no_source_or_sink_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("none")
    flow.source("s", own_source(dict)).transform(lambda df: df).named("t").to(own_sink(lambda schema: 1))
    with pytest.raises(PlanError, match=r"no holdfast\.edges\.Source"):
        flow.run(tmp_path / "work", spark=spark, until_idle=True)
    flow = Flow("none")
    lines = flow.source("s", own_source(lambda: OWN.Lines(str(tmp_path / "in"))))
    lines.transform(lambda df: df).named("t").to(own_sink(lambda schema: 1))
    with pytest.raises(PlanError, match="and no sink"):
        flow.run(tmp_path / "other", spark=spark, until_idle=True)
