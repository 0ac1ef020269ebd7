"""A user's own operator sees whole tables in a fixed order, and its state is exactly what it said."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import holdfast as hf
from batch import WAYS, assert_way, plans, read_sink, source, write_files
from event_time import MINUTE_US, START_US, events, ids_of, micros, watermark_of_rows
from holdfast.core.errors import FlowError, PlanError
from holdfast.flow.nodes import OwnOperator
from holdfast.ledger.status import status
from holdfast.spark.hashing import hash_columns
from holdfast.spark.keys import HASH
from holdfast.spark.operators.contract import Times
from holdfast.spark.operators.stateful import bind_stateful
from holdfast.state.spine import Spine

STATE = "n long, s long"
OUTPUT = "k string, n long, s long, what string"


def counts(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """Count and sum per key; a row with v = 0 deletes its key, together with all that came beside it."""
    fresh = rows.group_by("k").aggregate([("id", "count"), ("v", "sum"), ("v", "min_max")])
    zero = set(rows.filter(pc.equal(rows["v"], 0))["k"].to_pylist())
    new = pa.table({"k": fresh["k"], "n": fresh["id_count"], "s": pc.fill_null(fresh["v_sum"], 0)})
    both = (
        pa.concat_tables([state.cast(new.schema), new]).group_by("k").aggregate([("n", "sum"), ("s", "sum")])
    )
    both = both.select(["k", "n_sum", "s_sum"]).rename_columns(["k", "n", "s"])
    stays = pa.array([key not in zero for key in both["k"].to_pylist()], pa.bool_())
    live = both.filter(stays)
    gone = context.expired.select(["k", "n", "s"])
    output = pa.concat_tables(
        [
            live.append_column("what", pa.repeat(pa.scalar("live"), live.num_rows)),
            gone.append_column("what", pa.repeat(pa.scalar("expired"), gone.num_rows)),
        ]
    )
    return live, output


def run(
    spark: SparkSession,
    home: Path,
    table: pa.Table,
    *,
    per_epoch: int,
    tasks: int = 3,
    bits: int = 64,
    way: str = "spark",
    **options: object,
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    flow = hf.Flow("own")
    rows = flow.source("rows", source(home, table, per_epoch, way))
    stream = rows.stateful(counts, by=["k"], state=STATE, output=OUTPUT, **options).named("own")  # type: ignore[arg-type]
    stream.to(hf.parquet(str(home / "out")))
    if "time" in options:
        stream.late_to(hf.parquet(str(home / "late")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "own", way)


def model(
    table: pa.Table, per_epoch: int, watermark: np.ndarray | None = None, expire_us: int | None = None
) -> tuple[list[tuple[object, ...]], dict[str | None, tuple[int, int, int]]]:
    """Epoch by epoch in plain Python: what leaves, and what stays."""
    state: dict[str | None, tuple[int, int, int]] = {}
    out: list[tuple[object, ...]] = []
    keys, values, times = table["k"].to_pylist(), table["v"].to_pylist(), micros(table["ts"])
    missing = np.asarray(table["ts"].is_null())
    for epoch, start in enumerate(range(0, table.num_rows, per_epoch)):
        rows = list(range(start, min(start + per_epoch, table.num_rows)))
        if watermark is not None:
            reached = int(watermark[start])
            rows = [row for row in rows if not missing[row] and times[row] >= reached]
            for key in [key for key, (_, _, end) in state.items() if expire_us and end < reached]:
                out.append((epoch, key, *state.pop(key)[:2], "expired"))
        for key in {keys[row] for row in rows}:
            own = [row for row in rows if keys[row] == key]
            n, s, end = state.pop(key, (0, 0, -(2**63)))
            end = max([end, *(int(times[row]) + (expire_us or 0) for row in own)])
            if any(values[row] == 0 for row in own):
                continue
            state[key] = (n + len(own), s + sum(values[row] or 0 for row in own), end)
            out.append((epoch, key, *state[key][:2], "live"))
    return sorted(out, key=str), state


def found(home: Path) -> list[tuple[object, ...]]:
    rows = read_sink(home / "out")
    columns = [rows[name].to_pylist() for name in ("epoch", "k", "n", "s", "what")]
    return sorted(zip(*columns, strict=True), key=str)


@given(
    seed=st.integers(0, 10_000),
    per_epoch=st.integers(7, 40),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 20)
def test_any_epochs_and_tasks_equal_the_model(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed, per_epoch, tasks, bits, way
) -> None:
    home = tmp_path_factory.getbasetemp() / "own"
    table = events(seed, 120, keys=8, nulls=0.1)
    table = pa.concat_tables([table, table.slice(20, 30)])  # equal rows
    run(spark, home, table, per_epoch=per_epoch, tasks=tasks, bits=bits, way=way)
    out, state = model(table, per_epoch)
    assert found(home) == out
    assert status(home / "work")["stages"]["own"]["state_rows"] == len(state)


@given(
    seed=st.integers(0, 10_000),
    per_epoch=st.integers(7, 40),
    tasks=st.integers(1, 3),
    bits=st.sampled_from([64, 8]),
    expire=st.sampled_from([1, 7, 60]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 20)
def test_keys_expire_by_event_time_and_are_shown_once(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed, per_epoch, tasks, bits, expire, way
) -> None:
    home = tmp_path_factory.getbasetemp() / "expiring"
    table = events(seed, 120, keys=8, disorder_us=20 * MINUTE_US, nulls=0.05)
    run(
        spark, home, table, per_epoch=per_epoch, tasks=tasks, bits=bits, way=way,
        time="ts", late="10 minutes", order_by="ts", expire_after=f"{expire} minutes",
    )  # fmt: skip
    reached = watermark_of_rows(home / "work", "own", table.num_rows, per_epoch)
    out, state = model(table, per_epoch, reached, expire * MINUTE_US)
    # What the last watermark ends leaves in an epoch without rows.
    epochs = -(-table.num_rows // per_epoch)
    last = plans(home / "work", "own")[-1]["watermark_us"]
    out += [(epochs, key, n, s, "expired") for key, (n, s, end) in state.items() if end < last]  # type: ignore[operator]
    assert found(home) == sorted(out, key=str)
    held = status(home / "work")["stages"]["own"]["state_rows"]
    assert held == sum(end >= last for _, _, end in state.values())  # type: ignore[operator]
    late = np.asarray(table["ts"].is_null()) | (micros(table["ts"]) < reached)
    assert ids_of(home / "late") == np.flatnonzero(late).tolist()


def test_without_event_time_keys_expire_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    def once(table: pa.Table | None) -> None:
        if table is not None:
            write_files(tmp_path / "in", [table], first=len(list((tmp_path / "in").glob("*"))))
        flow = hf.Flow("clock")
        rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema="id long, k string, v long"))
        own = rows.stateful(counts, by=["k"], state=STATE, output=OUTPUT, expire_after="2 seconds")
        own.named("own").to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark)

    (tmp_path / "in").mkdir()
    once(pa.table({"id": [1, 2, 3], "k": ["a", "b", "a"], "v": [1, 1, 1]}))
    time.sleep(2.2)
    once(pa.table({"id": [4], "k": ["a"], "v": [5]}))
    time.sleep(2.2)
    once(None)
    live = [("a", 1, 5, "live"), ("a", 2, 2, "live"), ("b", 1, 1, "live")]
    expired = [(key, n, s, "expired") for key, n, s, _ in live]
    # Which run lets a key go depends on the clock; that each goes once, before its next row is counted, does not.
    assert sorted(row[1:] for row in found(tmp_path)) == sorted(live + expired)
    assert status(tmp_path / "work")["stages"]["own"]["state_rows"] == 0


def lags(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """Each row with the one before it of its key, as it comes: keys stand together, in order."""
    keys, ids = rows["k"].combine_chunks(), rows["id"].combine_chunks()
    first = np.append(True, np.asarray(pc.not_equal(keys[1:], keys[:-1]))) if len(keys) else np.zeros(0, bool)
    last = np.append(first[1:], True) if len(keys) else first
    held = dict(zip(state["k"].to_pylist(), state["last"].to_pylist(), strict=True))
    before = np.append([0], np.asarray(ids)[:-1]) if len(keys) else np.zeros(0, np.int64)
    starts = keys.filter(pa.array(first)).to_pylist()
    before[first] = [held.get(key, -1) for key in starts]
    new = pa.table({"k": keys.filter(pa.array(last)), "last": ids.filter(pa.array(last))})
    return new, pa.table({"id": ids, "before": before})


def test_rows_of_a_key_stand_in_the_order_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = pa.table({"id": np.arange(200), "k": rng.integers(0, 5, 200), "rank": rng.permutation(200)})
    for tasks, way in ((1, "spark"), (3, "direct")):
        home = tmp_path / way
        flow = hf.Flow("order")
        rows = flow.source("rows", source(home, table, 50, way))
        own = rows.stateful(lags, by="k", state="last long", output="id long, before long", order_by="rank")
        own.named("own").to(hf.parquet(str(home / "out")))
        flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks)
        got = read_sink(home / "out")
        pairs = dict(zip(got["id"].to_pylist(), got["before"].to_pylist(), strict=True))
        expected, last = {}, {}
        for start in range(0, 200, 50):
            rows_of = table.slice(start, 50).sort_by("rank")
            for i, k in zip(rows_of["id"].to_pylist(), rows_of["k"].to_pylist(), strict=True):
                expected[i] = last.get(k, -1)
                last[k] = i
        assert pairs == expected


def per_key(key, rows, state, context):  # type: ignore[no-untyped-def]
    import pandas as pd

    if (rows["v"] == 0).any():
        return None, None
    n = (state or {"n": 0})["n"] + len(rows)
    s = (state or {"s": 0})["s"] + int(rows["v"].sum())
    return {"n": n, "s": s}, pd.DataFrame({"k": [key[0]], "n": [n], "s": [s], "what": ["live"]})


def test_one_key_at_a_time_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = events(5, 100, keys=4)
    flow = hf.Flow("keys")
    rows = flow.source("rows", hf.rows(table, per_epoch=30))
    own = rows.stateful(hf.each_key(per_key, by=["k"]), by=["k"], state=STATE, output=OUTPUT)
    own.named("own").to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    assert found(tmp_path) == model(table, 30)[0]


def test_a_restart_after_every_file_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = events(8, 120, keys=6)
    for number, start in enumerate(range(0, 120, 30)):
        write_files(tmp_path / "in", [table.slice(start, 30)], first=number)
        flow = hf.Flow("restarted")
        rows = flow.source(
            "rows", hf.files(str(tmp_path / "in"), schema="id long, k string, v long, ts timestamp")
        )
        own = rows.stateful(counts, by=["k"], state=STATE, output=OUTPUT).named("own")
        own.to(hf.parquet(str(tmp_path / "out")))
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1 + number % 3)
    assert found(tmp_path) == model(table, 30)[0]


def answer(state: object, output: object) -> Callable[..., object]:
    return lambda rows, held, context: (state, output)


KEY = pa.table({"k": ["a"], "n": [1], "s": [1]})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows, state, context: 1 / 0, "raised ZeroDivisionError"),
        (lambda rows, state, context: state, "returned Table, not"),
        (answer(KEY.drop(["n"]), None), "state that its function returned has the columns k, s"),
        (answer(KEY.set_column(1, "n", pa.array(["x"])), None), "does not fit its schema"),
        (answer(pa.concat_tables([KEY, KEY]), None), "a key twice"),
        (answer(KEY.set_column(0, "k", pa.array(["z"])), None), "1 keys that have no rows"),
        (answer(KEY, [1]), "a list as output"),
    ],
)
def test_an_answer_that_cannot_be_right_stops_the_flow_and_names_the_stage(
    spark: SparkSession, tmp_path: Path, function: Callable[..., object], message: str
) -> None:
    flow = hf.Flow("wrong")
    rows = flow.source("rows", hf.rows(pa.table({"k": ["a"], "v": [1]})))
    own = rows.stateful(function, by=["k"], state=STATE, output=OUTPUT)  # type: ignore[arg-type]
    own.named("own").to(hf.parquet(str(tmp_path / "out")))
    with pytest.raises(FlowError, match=message) as caught:
        flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    assert (caught.value.stage, caught.value.epoch) == ("own", 0)


def test_what_cannot_be_bound_is_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    def own(message: str, **options: object) -> None:
        flow = hf.Flow("refused")
        rows = flow.source("rows", hf.rows(pa.table({"k": ["a"], "v": [1]})))
        arguments = {"by": ["k"], "state": STATE, "output": OUTPUT, **options}

        def described_and_run() -> None:
            rows.stateful(counts, **arguments).to(hf.discard())  # type: ignore[arg-type]
            flow.run(tmp_path / "work", until_idle=True, spark=spark)

        with pytest.raises(PlanError, match=message):
            described_and_run()

    own("needs key columns", by=[])
    own("no column 'x' to group by", by=["x"])
    own("no column 'x' to order by", order_by="x")
    own("schema of stage 'stateful-1' cannot be read", state="n lon")
    own("named like keys: k", state="k string, n long")
    own("no time column 'ts'", time="ts")
    own("max_ahead= needs time=", max_ahead="1 day")


def test_the_number_of_python_calls_does_not_follow_the_number_of_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    def calls(keys: int) -> int:
        rows = pa.table({"k": np.arange(keys), "v": np.ones(keys, np.int64)})
        rows = rows.append_column(HASH, pa.array(hash_columns([rows["k"].combine_chunks()])))
        spine = Spine(tmp_path, operator.state, (), (0, 4096), None)
        seen = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            changes = operator.apply_rows(rows, spine, Times(START_US, START_US))
        finally:
            sys.setprofile(None)
        assert changes.layer.num_rows == keys
        return seen

    def totals(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, None]:
        return pa.table({"k": rows["k"], "n": rows["v"]}), None

    df = spark.createDataFrame([], t.StructType.fromDDL("k long, v long"))
    node = OwnOperator(None, totals, ("k",), "n long", "k long", None, (), 1_000_000)  # type: ignore[arg-type]
    operator = bind_stateful("own", node, df, None, 1, 64)
    assert calls(1_000_000) < calls(1_000) + 200
