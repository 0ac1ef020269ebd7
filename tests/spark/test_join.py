"""The interval join equals a batch join of the rows that were not late, whatever the epochs, the tasks and the order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import WAYS, assert_same_rows, assert_way, plans, read_sink, source, write_files
from event_time import MINUTE_US, START_US, UTC_TIME, at, events, ids_of, micros, watermark_of_rows
from holdfast.core.errors import PlanError, StateSchemaError
from holdfast.flow.flow import Stream
from holdfast.ledger.status import status

WITHIN = {
    "around": ("-5 minutes", "5 minutes"),
    "after": ("1 minute", "20 minutes"),
    "before": ("-30 minutes", "-10 minutes"),
    "equal": ("0 seconds", "0 seconds"),
    "lopsided": ("-1 hour", "3 minutes"),
}
BOUNDS = {"around": (-5, 5), "after": (1, 20), "before": (-30, -10), "equal": (0, 0), "lopsided": (-60, 3)}


def two_sides(seed: int, rows: int, disorder_us: int = 0) -> tuple[pa.Table, pa.Table]:
    """Two streams with keys of two columns; many rows a key, some equal in all columns, null keys and times.

    Times are whole minutes, so that some are equal on both sides and many lie on the bounds.
    """
    sides = []
    for number in (0, 1):
        table = events(seed + number, rows, keys=2, disorder_us=disorder_us, nulls=0.05)
        rng = np.random.default_rng(seed + number)
        whole = pa.array(micros(table["ts"]) // MINUTE_US * MINUTE_US, mask=np.asarray(table["ts"].is_null()))
        table = table.set_column(3, "ts", whole.cast(UTC_TIME))
        doubles = np.array([0.0, -0.0, np.nan, 1.5])[rng.integers(0, 4, rows)]
        table = table.append_column("d", pa.array(doubles, mask=rng.random(rows) < 0.05, from_pandas=False))
        twice = np.sort(np.concatenate([np.arange(rows), rng.choice(rows, rows // 8)]))
        sides.append(table.take(pa.array(twice)))
    left, right = sides
    extra = pa.array([f"r{i}" for i in range(right.num_rows)])
    return left, right.rename_columns(["id", "k", "v", "at", "d"]).append_column("extra", extra)


def run(
    spark: SparkSession,
    home: Path,
    left: pa.Table,
    right: pa.Table,
    *,
    per_epoch: int = 20,
    within: tuple[str, str] = ("-5 minutes", "5 minutes"),
    how: str = "inner",
    late: str = "10 minutes",
    tasks: int = 3,
    bits: int = 64,
    drain: bool = True,
    way: str = "spark",
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    flow = hf.Flow("joins")
    one = flow.source("left", source(home / "l", left, per_epoch, way))
    other = flow.source("right", source(home / "r", right, per_epoch, way))
    joined = one.join(other, on=keys_of(left), time=("ts", "at"), within=within, late=late, how=how).named(
        "j"
    )
    joined.to(hf.parquet(str(home / "out")))
    joined.late_to(hf.parquet(str(home / "late_left")), side="left")
    joined.late_to(hf.parquet(str(home / "late_right")), side="right")
    flow.run(home / "work", until_idle=True, drain=drain, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "j", way)


def keys_of(left: pa.Table) -> list[str]:
    """Tasks leave doubles to Spark SQL."""
    return [name for name in ("k", "d") if name in left.column_names]


def on_time(home: Path, table: pa.Table, source: str, time: str, per_epoch: int) -> np.ndarray:
    reached = watermark_of_rows(home / "work", "j", table.num_rows, per_epoch, source)
    return np.asarray(table[time].is_valid()) & (micros(table[time]) >= reached)


def batch_join(
    spark: SparkSession, left: pa.Table, right: pa.Table, bounds: tuple[int, int], how: str
) -> DataFrame:
    spark.createDataFrame(left).createOrReplaceTempView("batch_left")
    spark.createDataFrame(right).createOrReplaceTempView("batch_right")
    low, high = (minutes * MINUTE_US for minutes in bounds)
    keys = keys_of(left)
    return spark.sql(
        f"select {', '.join(f'l.{key}' for key in keys)}, l.id, l.v, l.ts, r.id as id_right, r.v as v_right, r.at, r.extra"
        f" from batch_left l {how} join batch_right r on {' and '.join(f'l.{key} = r.{key}' for key in keys)}"
        f" and unix_micros(r.at) - unix_micros(l.ts) between {low} and {high}"
    )


def found(spark: SparkSession, home: Path, like: DataFrame) -> DataFrame:
    if not any((home / "out").rglob("*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(home / "out")).drop("epoch")


@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(sorted(WITHIN)),
    how=st.sampled_from(["inner", "left"]),
    per_epoch=st.integers(7, 50),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    disorder=st.sampled_from([0, 10, 60]),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=settings().max_examples // 10)
def test_any_epochs_tasks_and_order_equal_a_batch_of_the_rows_that_were_not_late(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    seed,
    kind,
    how,
    per_epoch,
    tasks,
    bits,
    disorder,
    way,
) -> None:
    home = tmp_path_factory.getbasetemp() / "join"
    left, right = two_sides(seed, 110, disorder * MINUTE_US)
    if way == "direct":
        left, right = left.drop(["d"]), right.drop(["d"])
    run(
        spark, home, left, right,
        per_epoch=per_epoch, within=WITHIN[kind], how=how, tasks=tasks, bits=bits, way=way,
    )  # fmt: skip
    kept = on_time(home, left, "left", "ts", per_epoch), on_time(home, right, "right", "at", per_epoch)
    expected = batch_join(spark, left.filter(kept[0]), right.filter(kept[1]), BOUNDS[kind], how)
    assert_same_rows(found(spark, home, expected), expected)
    assert ids_of(home / "late_left") == sorted(left.filter(~kept[0])["id"].to_pylist())
    assert ids_of(home / "late_right") == sorted(right.filter(~kept[1])["id"].to_pylist())
    aside = status(home / "work")["stages"]["j"]["aside"]
    assert sum(aside.values()) == sum(np.count_nonzero(~mask) for mask in kept)
    if how == "left":
        assert status(home / "work")["stages"]["j"]["state_rows"] == 0


def simple(seconds: list[float | None], keys: list[str | None] | None = None, name: str = "ts") -> pa.Table:
    rows = len(seconds)
    columns = {"id": pa.array(range(rows), pa.int64()), "k": pa.array(keys or ["a"] * rows, pa.string())}
    return pa.table({**columns, name: at(*seconds)})


def pairs_of(home: Path) -> list[tuple[int, int | None]]:
    if not any((home / "out").rglob("*.parquet")):
        return []
    out = read_sink(home / "out")
    found = list(zip(out["id"].to_pylist(), out["id_right"].to_pylist(), strict=True))
    return sorted(found, key=str)


def joined(
    home: Path, left: pa.Table, right: pa.Table, *, per_epoch: int = 1, within=("0 s", "10 s"), **options: str
) -> hf.Flow:
    flow = hf.Flow("simple")
    one = flow.source("left", hf.rows(left, per_epoch=per_epoch))
    other = flow.source("right", hf.rows(right, per_epoch=per_epoch))
    time = ("ts", next(name for name in right.column_names if name not in ("id", "k")))
    one.join(other, on="k", time=time, within=within, **options).named("j").to(  # type: ignore[arg-type]
        hf.parquet(str(home / "out"))
    )
    return flow


def state_rows(home: Path) -> int:
    return status(home / "work")["stages"]["j"]["state_rows"]


def test_equal_rows_pair_as_often_as_they_came(spark: SparkSession, tmp_path: Path) -> None:
    """Three equal rows on the left and two on the right, over several epochs, make six pairs."""
    left, right = simple([5, 5, 5, 100]), simple([9, 9, 101])
    left = left.set_column(0, "id", pa.array([7, 7, 7, 8]))
    right = right.set_column(0, "id", pa.array([3, 3, 4]))
    for per_epoch in (1, 2, 4):
        home = tmp_path / str(per_epoch)
        flow = joined(home, left, right, per_epoch=per_epoch, late="1 minute")
        flow.run(home / "work", until_idle=True, spark=spark, tasks=2)
        assert pairs_of(home) == [(7, 3)] * 6 + [(8, 4)]


def test_a_left_row_without_a_partner_leaves_once_and_only_when_none_can_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows 0 and 1 wait; 1 has a partner in time, 0 leaves when the watermark has passed its bound and slice."""
    left, right = simple([0, 20, 21, 40, 41]), simple([50, 29, 51, 52, 53], ["b", "a", "b", "b", "b"])
    home = tmp_path
    flow = joined(home, left, right, how="left", late="28 seconds")
    flow.run(home / "work", until_idle=True, spark=spark, tasks=2)
    # The watermark is at 13 seconds: row 0 can match up to second 10, and its slice ends two and a half later.
    assert pairs_of(home) == [(0, None), (1, 1), (2, 1)]
    joined(home, left, right, how="left", late="28 seconds").run(home / "work", drain=True, spark=spark)
    assert pairs_of(home) == [(0, None), (1, 1), (2, 1), (3, None), (4, None)]
    assert state_rows(home) == 0


def test_a_left_row_that_cannot_find_a_partner_leaves_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Its key is null, or the bounds lie before it and all of them is known already."""
    left, right = simple([100, 101, 102], ["a", None, "a"]), simple([100, 100, 100])
    flow = joined(tmp_path, left, right, how="left", within=("-30 seconds", "-20 seconds"))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert pairs_of(tmp_path) == [(0, None), (1, None), (2, None)]
    assert state_rows(tmp_path) == 3


def test_null_keys_pair_with_nothing_and_are_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    left, right = simple([0, 1, 2], [None, None, "a"]), simple([1, 2, 3], [None, "a", None])
    flow = joined(tmp_path, left, right, late="1 hour")
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert pairs_of(tmp_path) == [(2, 1)]
    assert state_rows(tmp_path) == 2


def test_a_stream_joined_with_itself_equals_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = events(5, 120, keys=3, disorder_us=5 * MINUTE_US)
    flow = hf.Flow("self")
    rows = flow.source("rows", hf.rows(table, per_epoch=17))
    later = rows.join(rows, on=["k"], time=("ts", "ts"), within=("1 s", "10 minutes"), late="5 minutes")
    later.to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=3)
    spark.createDataFrame(table).createOrReplaceTempView("self_rows")
    expected = spark.sql(
        "select l.k, l.id, l.v, l.ts, r.id as id_right, r.v as v_right, r.ts as ts_right"
        " from self_rows l join self_rows r on l.k = r.k"
        " and r.ts between l.ts + interval 1 second and l.ts + interval 10 minutes"
    )
    assert expected.count() > 50
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).drop("epoch"), expected)


def test_both_sides_may_have_transforms_and_several_inputs(spark: SparkSession, tmp_path: Path) -> None:
    """The slow one of three inputs holds the watermark, so that none of its rows is late."""
    fast, slow = events(1, 80, keys=2), events(2, 80, keys=2)
    right = events(3, 80, keys=2).rename_columns(["id", "k", "w", "ts"])
    flow = hf.Flow("sides")
    one = flow.source("fast", hf.rows(fast, per_epoch=40))
    two = flow.source("slow", hf.rows(slow, per_epoch=10)).transform(
        lambda df: df.select("ts", "v", "k", "id")
    )
    other = flow.source("right", hf.rows(right, per_epoch=20)).transform(lambda df: df.where("w > 0"))
    both = one.union(two).transform(lambda df: df.withColumn("big", f.expr("v > 10")))
    both.join(other, on="k", time=("ts", "ts"), within=("-2 minutes", "2 minutes")).named("j").to(
        hf.parquet(str(tmp_path / "out"))
    )
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    spark.createDataFrame(pa.concat_tables([fast, slow])).createOrReplaceTempView("sides_left")
    spark.createDataFrame(right).createOrReplaceTempView("sides_right")
    expected = spark.sql(
        "select l.k, l.id, l.v, l.ts, l.v > 10 as big, r.id as id_right, r.w, r.ts as ts_right"
        " from sides_left l join sides_right r on l.k = r.k and r.w > 0"
        " and r.ts between l.ts - interval 2 minutes and l.ts + interval 2 minutes"
    )
    assert expected.count() > 20
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).drop("epoch"), expected)
    assert status(tmp_path / "work")["stages"]["j"]["aside"] == {}


def chained(home: Path, left: Stream, right: Stream, how: str, time: str) -> None:
    pairs = left.join(
        right, on="k", time=("ts", "ts"), within=("-4 minutes", "9 minutes"), late="10 minutes", how=how
    )
    windows = pairs.named("j").group_by("k").window(time, tumbling="5 minutes")
    windows.agg(n=hf.count(), s=hf.sum("v_right")).named("w").to(hf.parquet(str(home / "out")))


def expected_chain(spark: SparkSession, left: pa.Table, right: pa.Table, how: str, time: str) -> DataFrame:
    spark.createDataFrame(left).createOrReplaceTempView("chain_left")
    spark.createDataFrame(right).createOrReplaceTempView("chain_right")
    return spark.sql(
        "select k, w.start as window_start, w.end as window_end, count(1) as n, sum(v) as s from"
        f" (select l.k, r.v, window({'l' if time == 'ts' else 'r'}.ts, '5 minutes') as w"
        f" from chain_left l {how} join chain_right r on l.k = r.k"
        " and r.ts between l.ts - interval 4 minutes and l.ts + interval 9 minutes)"
        " where w is not null group by k, w"
    )


@given(
    seed=st.integers(0, 10_000),
    how=st.sampled_from(["inner", "left"]),
    time=st.sampled_from(["ts", "ts_right"]),
    per_epoch=st.tuples(st.integers(10, 60), st.integers(10, 60)),
)
@settings(max_examples=settings().max_examples // 25)
def test_windows_over_either_time_of_a_joins_output_lose_nothing(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed, how, time, per_epoch
) -> None:
    """What the join holds back, its frontier says: no pair and no unmatched row is late for the window."""
    home = tmp_path_factory.mktemp("chain")
    left, right = (events(seed + n, 100, keys=3, disorder_us=10 * MINUTE_US) for n in (0, 1))
    flow = hf.Flow("chain")
    sides = [
        flow.source(name, hf.rows(table, per_epoch=rows))
        for name, table, rows in zip("lr", (left, right), per_epoch, strict=True)
    ]
    chained(home, *sides, how, time)
    flow.run(home / "work", drain=True, spark=spark, tasks=2)
    assert_same_rows(
        spark.read.parquet(str(home / "out")).drop("epoch"), expected_chain(spark, left, right, how, time)
    )
    stages = status(home / "work")["stages"]
    assert stages["j"]["aside"] == {}
    assert not stages["w"]["aside"].get("late")


def test_windows_are_joined_by_their_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Counts of two streams, brought together: the frontier of window ends is what holds the watermark."""
    left, right = (events(n, 90, keys=2) for n in (1, 2))
    flow = hf.Flow("ends")
    counts = [
        flow.source(name, hf.rows(table, per_epoch=20))
        .group_by("k")
        .window("ts", tumbling="10 minutes")
        .agg(n=hf.count())
        .transform(lambda df: df.withColumn("k", f.expr("coalesce(k, '')")))
        for name, table in zip("lr", (left, right), strict=True)
    ]
    times = {"time": ("window_end", "window_end"), "within": ("0 s", "0 s")}
    counts[0].join(counts[1], on=["k", "window_end"], how="left", **times).named("j").to(  # type: ignore[arg-type]
        hf.parquet(str(tmp_path / "out"))
    )
    flow.run(tmp_path / "work", drain=True, spark=spark, tasks=2)
    for name, table in zip("lr", (left, right), strict=True):
        spark.createDataFrame(table).createOrReplaceTempView(f"ends_{name}")
        spark.sql(
            f"create or replace temp view counts_{name} as select coalesce(k, '') as k, w.start as window_start,"
            f" w.end as window_end, count(1) as n from (select k, window(ts, '10 minutes') as w from ends_{name})"
            " group by k, w"
        )
    expected = spark.sql(
        "select l.k, l.window_end, l.window_start, l.n, r.window_start as window_start_right, r.n as n_right"
        " from counts_l l left join counts_r r on l.k = r.k and l.window_end = r.window_end"
    )
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).drop("epoch"), expected)
    assert status(tmp_path / "work")["stages"]["j"]["aside"] == {}


SCHEMA = "id long, k string, v long, ts timestamp"


def from_files(home: Path, late: str = "10 minutes", within: str = "5 minutes") -> hf.Flow:
    flow = hf.Flow("files")
    left, right = (
        flow.source(name, hf.files(str(home / name), schema=SCHEMA, max_files_per_epoch=1))
        for name in ("left", "right")
    )
    pairs = left.join(right, on="k", time=("ts", "ts"), within=("-3 minutes", within), late=late, how="left")
    pairs.named("j").to(hf.parquet(str(home / "out")))
    return flow


def test_restarts_at_any_epoch_and_lost_files_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """All of the state is deleted before one of the restarts; replays must have equal digests."""
    tables = {
        name: events(n, 96, keys=3, disorder_us=10 * MINUTE_US) for n, name in enumerate(("left", "right"))
    }
    for name, cuts in (("once", [12]), ("often", [1, 2, 5, 6, 9, 12])):
        home = tmp_path / name
        for first, stop in zip([0, *cuts], cuts, strict=False):
            for side, table in tables.items():
                write_files(home / side, [table.slice(i * 8, 8) for i in range(first, stop)], first)
            if first == 6:
                kept = [file for file in (home / "work" / "data" / "j").rglob("*.arrow")]
                assert kept
                for file in kept:
                    file.unlink()
            from_files(home).run(home / "work", until_idle=True, spark=spark, tasks=2)
        from_files(home).run(home / "work", drain=True, spark=spark, tasks=3)
    once, often = (
        spark.read.parquet(str(tmp_path / name / "out")).drop("epoch") for name in ("once", "often")
    )
    assert_same_rows(often, once)


def test_the_lateness_may_change_but_not_the_bounds(spark: SparkSession, tmp_path: Path) -> None:
    for side in ("left", "right"):
        write_files(tmp_path / side, [events(1, 20)])
    from_files(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    from_files(tmp_path, late="1 hour").run(tmp_path / "work", until_idle=True, spark=spark)
    with pytest.raises(StateSchemaError, match="within"):
        from_files(tmp_path, within="6 minutes").run(tmp_path / "work", until_idle=True, spark=spark)


def test_each_side_is_kept_only_as_long_as_it_can_find_a_partner(spark: SparkSession, tmp_path: Path) -> None:
    """A row a minute on both sides; the right must follow within 16 minutes, so only left rows are kept long."""
    times = [60.0 * minute for minute in range(120)]
    left, right = simple(times), simple(times, ["b"] * 120)
    flow = joined(tmp_path, left, right, per_epoch=10, within=("0 s", "16 minutes"))
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    # The last plan's watermark is at minute 109; slices are of four minutes, and ten minutes lie above it.
    kept_left, kept_right = 120 - (109 - 16), 120 - 109
    assert kept_left + kept_right <= state_rows(tmp_path) <= kept_left + kept_right + 2 * 4
    assert pairs_of(tmp_path) == []


def test_rows_without_a_time_or_from_the_future_leave_by_the_ports_of_their_side(
    spark: SparkSession, tmp_path: Path
) -> None:
    future = pa.array([32_503_680_000_000_000]).cast(UTC_TIME)
    left = simple([0, None, 100, 3, 0]).set_column(2, "ts", pa.concat_arrays([at(0, None, 100, 3), future]))
    right = simple([1, 101, 2, 0], name="at").set_column(2, "at", pa.concat_arrays([at(1, 101, 2), future]))
    right = right.append_column("w", pa.array([1.5] * 4))
    flow = hf.Flow("aside")
    one = flow.source("left", hf.rows(left, per_epoch=1))
    other = flow.source("right", hf.rows(right, per_epoch=1))
    pairs = one.join(other, on="k", time=("ts", "at"), within=("0 s", "10 s"), max_ahead="1 day").named("j")
    for side in ("left", "right"):
        pairs.late_to(hf.parquet(str(tmp_path / f"late_{side}")), side=side)
        pairs.quarantine_to(hf.parquet(str(tmp_path / f"future_{side}")), side=side)
    pairs.to(hf.parquet(str(tmp_path / "out")))
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert (ids_of(tmp_path / "late_left"), ids_of(tmp_path / "late_right")) == ([1, 3], [])
    assert (ids_of(tmp_path / "future_left"), ids_of(tmp_path / "future_right")) == ([4], [3])
    assert read_sink(tmp_path / "late_left").column_names == ["id", "k", "ts", "epoch"]
    assert read_sink(tmp_path / "future_right").column_names == ["id", "k", "at", "w", "epoch"]
    assert status(tmp_path / "work")["stages"]["j"]["aside"] == {"ahead": 2, "late": 1, "no_time": 1}
    assert pairs_of(tmp_path) == [(0, 0), (0, 2), (2, 1)]
    assert max(plan["watermark_us"] or 0 for plan in plans(tmp_path / "work", "j")) <= START_US + 101_000_000


def test_joins_that_cannot_work_say_why(spark: SparkSession, tmp_path: Path) -> None:
    def planned(left: str = "", right: str = "", **options: object) -> None:
        flow = hf.Flow("bad")
        one, other = (
            flow.source(name, hf.files(str(tmp_path), schema=f"k string, ts timestamp, v long{more}"))
            for name, more in (("l", left), ("r", right))
        )
        arguments = {"on": "k", "time": ("ts", "ts"), "within": ("0 s", "1 s"), **options}
        one.join(other, **arguments).to(hf.discard())  # type: ignore[arg-type]
        flow.run(tmp_path / "work", until_idle=True, spark=spark)

    with pytest.raises(PlanError, match="the right stream has no column 'x' to join on.*k, ts, v"):
        planned(left=", x int", on=["k", "x"])
    with pytest.raises(PlanError, match="the key 'x' is a int on the left and a bigint on the right.*Cast"):
        planned(left=", x int", right=", x long", on=["k", "x"])
    with pytest.raises(PlanError, match="column 'm' cannot be a key: it holds a map"):
        planned(left=", m map<string,int>", right=", m map<string,int>", on="m")
    with pytest.raises(PlanError, match="no time column 'when'.*k, ts, v"):
        planned(time=("ts", "when"))
    with pytest.raises(PlanError, match="'v' is a bigint, not a timestamp"):
        planned(time=("v", "ts"))
    with pytest.raises(PlanError, match="a timestamp and the other a timestamp_ntz"):
        planned(right=", at timestamp_ntz", time=("ts", "at"))
    with pytest.raises(PlanError, match="several columns named v_right.*suffixes"):
        planned(left=", v_right int")
    with pytest.raises(PlanError, match="several columns named vx"):
        planned(left=", vX int", suffixes=("x", ""))
