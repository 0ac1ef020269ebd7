"""A source without a schema: inferred once, written down, and from then on a schema like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import holdfast as hf
from batch import last_per_key
from command import holdfast
from holdfast.core.errors import InputError, PlanError, StateSchemaError
from holdfast.flow.planner import plan
from holdfast.ledger import schema, source_schemas
from holdfast.ledger.ledger import reading
from holdfast.ledger.source_schemas import SCHEMA_CHANGED, SCHEMA_INFERRED
from holdfast.runtime.checking import columns_by_stage
from pages import blocks

ROOT = Path(__file__).resolve().parents[2]
INFERRED = "user string, qty bigint, at timestamp"


def write(home: Path, name: str, quantities: list[int], **more: object) -> None:
    (home / "in").mkdir(exist_ok=True)
    users = [f"u{n % 2}" for n in quantities]
    at = pd.to_datetime(["2026-01-01"] * len(quantities))
    pd.DataFrame({"user": users, "qty": quantities, "at": at, **more}).to_parquet(
        home / "in" / f"{name}.parquet"
    )


def totals(home: Path, declared: str | None) -> hf.Flow:
    flow = hf.Flow("totals")
    rows = flow.source("orders", hf.files(str(home / "in"), schema=declared))
    rows.group_by("user").agg(total=hf.sum("qty"), most=hf.max("qty")).named("t").to(
        hf.parquet(str(home / "out"))
    )
    return flow


def told(work: Path) -> list[tuple[str, str]]:
    events = schema.events
    kinds = (SCHEMA_INFERRED, SCHEMA_CHANGED)
    with reading(work) as tx:
        found = tx.execute(
            sa.select(events.c.kind, events.c.reason).where(events.c.kind.in_(kinds)).order_by(events.c.seq)
        )
        return [(kind, reason) for kind, reason in found]


def recorded(work: Path) -> str:
    with reading(work) as tx:
        return source_schemas.recorded(tx)["orders"].ddl


def test_it_is_inferred_once_and_an_edit_is_told_or_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "work"

    def run(declared: str | None) -> dict[str, int]:
        totals(tmp_path, declared).run(work, until_idle=True, spark=spark)
        rows = last_per_key(spark, tmp_path / "out", ["user"]).collect()
        return {row["user"]: row["total"] for row in rows}

    write(tmp_path, "a", [1, 2, 3])
    assert run(None) == {"u0": 2, "u1": 4}
    assert told(work) == [(SCHEMA_INFERRED, f"source orders, from 1 file: {INFERRED}")]
    write(tmp_path, "b", [4], more=["passed over"])
    assert run(None) == {"u0": 6, "u1": 4}
    write(tmp_path, "c", [5])
    assert run("user STRING, qty long,  at timestamp") == {"u0": 6, "u1": 9}
    assert (recorded(work), len(told(work))) == (INFERRED, 1)
    # What the state was made of does not change with it: it goes on, and is told.
    write(tmp_path, "d", [6], more=["x"])
    assert run(f"{INFERRED}, more string") == {"u0": 12, "u1": 9}
    assert told(work)[1:] == [(SCHEMA_CHANGED, f"source orders: {INFERRED} -> {INFERRED}, more string")]
    # The largest quantity would be another type in the state.
    write(tmp_path, "e", [7], more=["x"])
    with pytest.raises(StateSchemaError):
        run("user string, qty int, at timestamp")
    assert recorded(work) == f"{INFERRED}, more string"
    # A flow that declares none goes on with what was declared last.
    assert run(None) == {"u0": 12, "u1": 16}
    write(tmp_path, "f", [8])
    with pytest.raises(InputError, match="f.parquet: it has no column 'more'"):
        run(None)


def test_check_tells_columns_and_types_of_every_stage_or_the_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = hf.Flow("checked")
    table = pa.table({"user": ["a"], "qty": pa.array([1], pa.int32())})
    rows = flow.source("orders", hf.rows(table))
    priced = rows.transform(lambda df: df.selectExpr("user", "qty * 1.5 as price"))
    priced.group_by("user").agg(total=hf.sum("price")).named("t").to(hf.parquet(str(tmp_path / "out")))
    assert columns_by_stage(plan(flow), spark) == {
        "t": [{"name": "user", "type": "string"}, {"name": "total", "type": "decimal(23,1)"}]
    }
    priced.group_by("qty").agg(n=hf.count()).named("behind").to(hf.discard())
    with pytest.raises(PlanError, match="no column 'qty'"):
        columns_by_stage(plan(flow), spark)
    assert list(tmp_path.iterdir()) == []


def test_the_command_checks_a_flow_on_a_spark_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "a", [1])
    (tmp_path / "flow_file.py").write_text(
        "import holdfast as hf\n"
        "flow = hf.Flow('checked')\n"
        "rows = flow.source('orders', hf.files('in/'))\n"
        "rows.transform(lambda df: df.withColumn('n', df.qty + 1)).group_by('n').agg(most=hf.max('at')).named('t')"
        ".to(hf.parquet('out'))\n"
    )
    command = [sys.executable, "-m", "holdfast", "explain", "--check", "flow_file.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["stages"][0]["columns"] == [
        {"name": "n", "type": "bigint"},
        {"name": "most", "type": "timestamp"},
    ]
    source = found["sources"][0]
    assert (source["schema"], source["schema_from"]) == (
        INFERRED,
        "inferred now from 1 file; the first run writes it down",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow_file.py", "in"]


def test_the_flow_without_a_schema_of_the_page_runs_as_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a", [1, 2, 3])
    _, block, _ = blocks(ROOT / "docs" / "SOURCES.md", "python")
    names: dict[str, hf.Flow] = {}
    exec(block, names)
    names["flow"].run("work/", until_idle=True, spark=spark)
    rows = last_per_key(spark, tmp_path / "totals", ["user"]).collect()
    assert {row["user"]: (row["n"], row["qty"]) for row in rows} == {"u0": (1, 2), "u1": (2, 4)}


def test_explain_shows_the_schema_that_a_run_has_written_down(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", [1])
    (tmp_path / "shown_flow.py").write_text(
        f"import holdfast as hf\nflow = hf.Flow('totals')\n"
        f"rows = flow.source('orders', hf.files({str(tmp_path / 'in')!r}))\n"
        f"rows.group_by('user').agg(total=hf.sum('qty'), most=hf.max('qty')).named('t').to(hf.parquet({str(tmp_path / 'out')!r}))\n"
    )
    totals(tmp_path, None).run(tmp_path / "work", until_idle=True, spark=spark)
    said = holdfast("explain", tmp_path / "shown_flow.py", "--work-dir", tmp_path / "work")
    assert f"schema: {INFERRED}" in said.out
    assert "schema from: as an earlier run inferred it from 1 file" in said.out
    assert "problem" not in said.out
    assert "holdfast explain --check" in said.out
