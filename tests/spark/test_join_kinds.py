"""Right, full, semi and anti joins equal Spark's batch joins of the rows on time; one flow has them all."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import WAYS, assert_same_rows, assert_way, read_sink, source, write_files
from event_time import MINUTE_US, at, events, ids_of, micros, watermark_of_rows
from holdfast.core.errors import StateSchemaError
from holdfast.flow.flow import Stream
from holdfast.ledger.status import status

KINDS = ("right", "full", "semi", "anti")
WITHIN = {"around": (-5, 5), "after": (1, 20), "before": (-30, -10), "equal": (0, 0), "lopsided": (-60, 3)}


def two_sides(seed: int, rows: tuple[int, int], disorder_us: int) -> tuple[pa.Table, pa.Table]:
    """Two streams by three keys; many rows a key, some equal in all columns, nulls in keys, times and values.

    Times are whole minutes, so that many lie on the bounds.
    """
    sides = []
    for number, count in enumerate(rows):
        table = events(seed + number, count, keys=2, disorder_us=disorder_us, nulls=0.05)
        rng = np.random.default_rng(seed + number)
        whole = pa.array(micros(table["ts"]) // MINUTE_US * MINUTE_US, mask=np.asarray(table["ts"].is_null()))
        doubles = np.array([0.0, -0.0, np.nan, 1.5])[rng.integers(0, 4, count)]
        decimals = pa.array([Decimal("0.50"), Decimal("-1.25"), None], pa.decimal128(6, 2))
        table = (
            table.set_column(3, "ts", whole.cast(table["ts"].type))
            .append_column("d", pa.array(doubles, mask=rng.random(count) < 0.05, from_pandas=False))
            .append_column("m", decimals.take(pa.array(rng.choice(3, count, p=[0.48, 0.48, 0.04]))))
        )
        twice = np.sort(np.concatenate([np.arange(count), rng.choice(count, count // 8)])) if count else []
        sides.append(table.take(pa.array(twice, pa.int64())))
    left, right = sides
    extra = pa.array([f"r{i}" for i in range(right.num_rows)], pa.string())
    return left, right.rename_columns(["id", "k", "v", "at", "d", "m"]).append_column("extra", extra)


def keys_of(left: pa.Table) -> list[str]:
    return [name for name in ("k", "d", "m") if name in left.column_names]


def on_time(work: Path, stage: str, table: pa.Table, name: str, time: str, per_epoch: int) -> np.ndarray:
    reached = watermark_of_rows(work, stage, table.num_rows, per_epoch, name)
    return np.asarray(table[time].is_valid()) & (micros(table[time]) >= reached)


def batch_join(
    spark: SparkSession, left: pa.Table, right: pa.Table, bounds: tuple[int, int], how: str
) -> DataFrame:
    """By Spark, whose own join on columns says which key a row without a partner has."""
    low, high = (minutes * MINUTE_US for minutes in bounds)
    keys = keys_of(left)
    spark.createDataFrame(left).createOrReplaceTempView("kinds_left")
    spark.createDataFrame(right).createOrReplaceTempView("kinds_right")
    near = " and ".join(f"l.{key} = r.{key}" for key in keys)
    near += f" and unix_micros(r.at) - unix_micros(l.ts) between {low} and {high}"
    chosen = [f"{'r' if how == 'right' else 'l'}.{key}" for key in keys]
    if how == "full":
        chosen = [f"coalesce(l.{key}, r.{key}) as {key}" for key in keys]
    others = ["l.id", "l.v", "l.ts"]
    if how in ("right", "full"):
        others += ["r.id as id_right", "r.v as v_right", "r.at", "r.extra"]
    return spark.sql(
        f"select {', '.join([*chosen, *others])} from kinds_left l {how} join kinds_right r on {near}"
    )


def found(spark: SparkSession, out: Path, like: DataFrame) -> DataFrame:
    if not any(out.rglob("*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(out)).drop("epoch")


@given(
    seed=st.integers(0, 10_000),
    within=st.sampled_from(sorted(WITHIN)),
    per_epoch=st.integers(15, 60),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    disorder=st.sampled_from([0, 10, 60]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=max(3, settings().max_examples // 33))
def test_every_kind_equals_a_batch_of_the_rows_that_were_not_late(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory,
    seed, within, per_epoch, tasks, bits, disorder, way,
) -> None:  # fmt: skip
    home = tmp_path_factory.getbasetemp() / "kinds"
    shutil.rmtree(home, ignore_errors=True)
    left, right = two_sides(seed, (100, 100), disorder * MINUTE_US)
    if way == "direct":  # tasks leave doubles to Spark SQL
        left, right = left.drop(["d"]), right.drop(["d"])
    flow = hf.Flow("kinds")
    one = flow.source("left", source(home / "l", left, per_epoch, way))
    other = flow.source("right", source(home / "r", right, per_epoch, way))
    bounds = WITHIN[within]
    span = (f"{bounds[0]} minutes", f"{bounds[1]} minutes")
    for how in KINDS:
        joined = one.join(
            other, on=keys_of(left), time=("ts", "at"), within=span, late="10 minutes", how=how
        ).named(how)
        joined.to(hf.parquet(str(home / how)))
        if how == "semi":
            joined.late_to(hf.parquet(str(home / "late")), side="right")
    flow.run(home / "work", drain=True, spark=spark, tasks=tasks, hash_bits=bits)
    for how in KINDS:
        assert_way(home / "work", how, way)
        kept = [
            on_time(home / "work", how, table, name, time, per_epoch)
            for table, name, time in ((left, "left", "ts"), (right, "right", "at"))
        ]
        expected = batch_join(spark, left.filter(kept[0]), right.filter(kept[1]), bounds, how)
        assert_same_rows(found(spark, home / how, expected), expected)
        stage = status(home / "work")["stages"][how]
        assert sum(stage["aside"].values()) == sum(np.count_nonzero(~mask) for mask in kept)
        if how == "semi":
            assert ids_of(home / "late") == sorted(right.filter(~kept[1])["id"].to_pylist())
        else:
            assert stage["state_rows"] == 0


def test_an_input_that_is_empty_altogether_leaves_all_rows_of_the_other_without_a_partner(
    spark: SparkSession, tmp_path: Path
) -> None:
    full, empty = two_sides(3, (40, 0), 0)
    flow = hf.Flow("empty")
    some = flow.source("some", hf.rows(full, per_epoch=15))
    none = flow.source("none", hf.rows(empty, per_epoch=15))
    for how in KINDS:
        options = {"on": ["k"], "within": ("-5 minutes", "5 minutes"), "how": how}
        for name, joined in (
            ("before", some.join(none, time=("ts", "at"), **options)),
            ("after", none.join(some, time=("at", "ts"), **options)),
        ):
            joined.named(f"{how}-{name}").to(hf.parquet(str(tmp_path / f"{how}-{name}")))
    flow.run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    timed = full.filter(full["ts"].is_valid())["id"].to_pylist()
    gave = {"full-before": "id", "anti-before": "id", "full-after": "id_right", "right-after": "id_right"}
    for name in (f"{how}-{order}" for how in KINDS for order in ("before", "after")):
        out = tmp_path / name
        ids = read_sink(out)[gave[name]].to_pylist() if any(out.rglob("*.parquet")) else []
        assert sorted(ids) == (sorted(timed) if name in gave else []), name


def chained(flow: hf.Flow, home: Path, left: Stream, right: Stream) -> None:
    """Windows over either time of a full join, and over what semi and anti joins let go."""
    options = {"on": "k", "time": ("ts", "ts"), "within": ("-4 minutes", "9 minutes"), "late": "10 minutes"}
    full, semi, anti = (left.join(right, **options, how=how).named(how) for how in ("full", "semi", "anti"))
    for stream, time, name in (
        (full, "ts", "full-ts"), (full, "ts_right", "full-ts_right"), (semi, "ts", "semi-ts"), (anti, "ts", "anti-ts"),
    ):  # fmt: skip
        windows = stream.group_by("k").window(time, tumbling="5 minutes").agg(n=hf.count(), s=hf.sum("id"))
        windows.named(name).to(hf.parquet(str(home / name)))


def expected_chain(spark: SparkSession, how: str, time: str) -> DataFrame:
    of = "r" if time == "ts_right" else "l"
    key = "coalesce(l.k, r.k)" if how == "full" else "l.k"
    return spark.sql(
        "select k, w.start as window_start, w.end as window_end, count(1) as n, sum(id) as s from"
        f" (select {key} as k, l.id, window({of}.ts, '5 minutes') as w"
        f" from chain_left l {how} join chain_right r on l.k = r.k"
        " and r.ts between l.ts - interval 4 minutes and l.ts + interval 9 minutes)"
        " where w is not null group by k, w"
    )


def test_windows_behind_joins_of_every_kind_see_no_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    """What a join holds back, on either side, its frontier says."""
    left, right = (events(n, 100, keys=3, disorder_us=10 * MINUTE_US) for n in (21, 22))
    flow = hf.Flow("chain")
    sides = [
        flow.source(name, hf.rows(table, per_epoch=rows))
        for name, table, rows in (("l", left, 15), ("r", right, 40))
    ]
    chained(flow, tmp_path, *sides)
    flow.run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    spark.createDataFrame(left).createOrReplaceTempView("chain_left")
    spark.createDataFrame(right).createOrReplaceTempView("chain_right")
    stages = status(tmp_path / "work")["stages"]
    for name in ("full-ts", "full-ts_right", "semi-ts", "anti-ts"):
        how, time = name.split("-")
        expected = expected_chain(spark, how, time)
        assert expected.count() > 5
        assert_same_rows(spark.read.parquet(str(tmp_path / name)).drop("epoch"), expected)
        assert not stages[name]["aside"].get("late"), name


SCHEMA = "id long, k string, v long, ts timestamp"


def from_files(home: Path, late_right: bool = False, **hows: str) -> hf.Flow:
    """All four kinds; `hows` says another one for a stage."""
    flow = hf.Flow("files")
    left, right = (
        flow.source(name, hf.files(str(home / name), schema=SCHEMA, max_files_per_epoch=1))
        for name in ("left", "right")
    )
    for name in KINDS:
        how = hows.get(name, name)
        pairs = left.join(
            right, on="k", time=("ts", "ts"), within=("-3 minutes", "5 minutes"), late="10 minutes", how=how
        ).named(name)
        pairs.to(hf.parquet(str(home / f"out-{name}")))
        if late_right and name == "semi":
            pairs.late_to(hf.parquet(str(home / "late")), side="right")
    return flow


def test_restarts_lost_files_and_edits_change_nothing_that_they_may_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All state is deleted before a restart. Another kind is refused; Spark's name for it, and a new late sink, are not."""
    tables = {
        name: events(n, 60, keys=3, disorder_us=15 * MINUTE_US) for n, name in enumerate(("left", "right"))
    }
    for name, cuts in (("once", [6]), ("often", [2, 4, 6])):
        home = tmp_path / name
        for first, stop in zip([0, *cuts], cuts, strict=False):
            for side, table in tables.items():
                write_files(home / side, [table.slice(i * 10, 10) for i in range(first, stop)], first)
            if first == 2:
                kept = [file for how in KINDS for file in (home / "work" / "data" / how).rglob("*.arrow")]
                assert kept
                for file in kept:
                    file.unlink()
            # Files can be made again only by the code that made them, so what is edited comes later.
            edits = {"late_right": True, "full": "outer", "semi": "left_semi"} if first == 4 else {}
            flow = from_files(home, **edits)
            flow.run(home / "work", until_idle=True, spark=spark, tasks=2)
        from_files(home, late_right=name == "often").run(home / "work", drain=True, spark=spark, tasks=3)
    for how in KINDS:
        once, often = (
            spark.read.parquet(str(tmp_path / name / f"out-{how}")).drop("epoch")
            for name in ("once", "often")
        )
        assert_same_rows(often, once)
    for name, how in (("semi", "anti"), ("right", "full"), ("full", "inner")):
        with pytest.raises(StateSchemaError, match=f"operator: {name} join -> {how} join"):
            from_files(tmp_path / "once", **{name: how}).run(
                tmp_path / "once" / "work", until_idle=True, spark=spark
            )


def moments(seconds: list[float], keys: list[str | None] | None = None) -> pa.Table:
    count = len(seconds)
    return pa.table(
        {"id": pa.array(range(count)), "k": pa.array(keys or ["a"] * count, pa.string()), "ts": at(*seconds)}
    )


def test_what_leaves_when(spark: SparkSession, tmp_path: Path) -> None:
    """The table of the page: at once, when a partner comes, or when the watermark has passed the last moment for one."""
    left = moments([0, 19, 21, 60, 61, 62], ["a", "a", None, "b", "b", "b"])
    right = moments([2, 25, 3, 60, 61, 62], ["x", "a", None, "c", "c", "c"])
    flow = hf.Flow("when")
    one, other = (
        flow.source(name, hf.rows(table, per_epoch=3)) for name, table in (("l", left), ("r", right))
    )
    options = {"on": "k", "time": ("ts", "ts"), "within": ("0 s", "10 s"), "late": "30 s"}
    for how in KINDS:
        one.join(other, **options, how=how).named(how).to(hf.parquet(str(tmp_path / how)))

    def gave() -> dict[str, list[tuple[int | None, ...]]]:
        tables = {how: read_sink(tmp_path / how) for how in KINDS}
        sides = {how: [n for n in ("id", "id_right") if n in t.column_names] for how, t in tables.items()}
        return {
            how: sorted(zip(*(tables[how][name].to_pylist() for name in names), strict=True), key=str)
            for how, names in sides.items()
        }

    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    # The watermark is at 32 seconds: of the first three rows of each side nothing waits any more.
    assert gave() == {
        "right": [(1, 1), (None, 0), (None, 2)],
        "full": [(0, None), (1, 1), (2, None), (None, 0), (None, 2)],
        "semi": [(1,)],
        "anti": [(0,), (2,)],
    }
    states = {how: status(tmp_path / "work")["stages"][how]["state_rows"] for how in KINDS}
    # Of a semi join nothing leaves by time alone, so that what has expired goes with its next epoch; (1, 1) are gone or out.
    assert states == {**dict.fromkeys(KINDS, 6), "semi": 6 + 3}
    flow.run(tmp_path / "work", drain=True, spark=spark)
    drained = gave()
    assert [drained["right"][-3:], drained["anti"][-3:]] == [
        [(None, 3), (None, 4), (None, 5)],
        [(3,), (4,), (5,)],
    ]
    assert len(drained["full"]) == 5 + 6
    assert drained["semi"] == [(1,)]
