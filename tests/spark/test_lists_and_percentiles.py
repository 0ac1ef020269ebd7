"""collect_list, collect_set, top_k and percentile: Spark's batch result, whatever the epochs, the tasks and the restarts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import WAYS, assert_way, batch, ddl, last_per_key, read_sink, source, write_files
from command import holdfast
from event_time import events

NAN = math.nan
RANKS = [0.0, 0.25, 0.5, 0.99, 1.0]
ERROR = 0.01
SMALLEST = 2.3e-308  # numbers nearer to zero are zero


def top_rows(x: str, by: str, k: int, ascending: bool = False) -> str:
    """What `max_by(x, by, k)` gives where ties are settled by the value."""
    rows = f"collect_list(struct({by} as t, {x} as x)) filter (where ({by}) is not null)"
    top = f"slice(sort_array({rows}, {str(ascending).lower()}), 1, {k})"
    return f"transform(if(size({top}) = 0, null, {top}), row -> row.x)"


LISTS = {
    "l_x": hf.collect_list("x"),
    "l_f": hf.collect_list("f"),
    "l_d": hf.collect_list("d"),
    "l_s": hf.collect_list("s"),
    "l_t": hf.collect_list("t"),
    "l_b": hf.collect_list("b"),
    "l_day": hf.collect_list("day"),
    "by_x": hf.collect_list("s", by="x"),
    "by_t": hf.collect_list("d", by="t"),
    "set_x": hf.collect_set("x"),
    "set_d": hf.collect_set("d"),
    "set_s": hf.collect_set("s"),
    "top_x": hf.top_k("x", 2),
    "top_s": hf.top_k("s", 3),
    "low_d": hf.top_k("d", 2, smallest=True),
    "top_s_by_x": hf.top_k("s", 3, by="x"),
    "low_f_by_t": hf.top_k("f", 2, by="t", smallest=True),
}
ORACLES = {
    **{name: aggregate.sql() for name, aggregate in LISTS.items()},
    "top_s_by_x": top_rows("s", "x", 3),
    "low_f_by_t": top_rows("f", "t", 2, ascending=True),
}
PERCENTILES = {
    "p_x": hf.percentile("x", RANKS),
    "p_d": hf.percentile("d", RANKS),
    "p_i": hf.percentile("i", 0.5),
}
AGGREGATES = {**LISTS, **PERCENTILES}
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("d", pa.decimal128(20, 3)),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("b", pa.bool_()),
    ]
)
_START = datetime(2026, 3, 1, tzinfo=UTC)
_doubles = st.sampled_from([0.0, -0.0, 1.5, -2.5, NAN, math.inf, -math.inf, 1e300, -1e-300, 100.0])
_rows = st.fixed_dictionaries(
    {
        "k": st.none() | st.sampled_from(["", "a"]),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "x": st.none() | _doubles | st.floats(-1e6, 1e6),
        "f": st.none() | st.sampled_from([0.0, -0.0, 0.5, NAN, -math.inf]),
        "d": st.none() | st.decimals(-(10**8), 10**8, places=3).map(Decimal) | st.just(Decimal("7.000")),
        "s": st.none() | st.sampled_from(["", "a", "ä", "a\x00b", "a"]) | st.text(max_size=3),
        "t": st.none() | st.integers(0, 3).map(lambda h: _START + timedelta(hours=h)),
        "day": st.none() | st.integers(0, 3).map(lambda d: date(1969, 12, 30) + timedelta(days=d)),
        "b": st.none() | st.booleans(),
    }
)
NOTHING = dict.fromkeys(SCHEMA.names)
ZEROS = [
    {**NOTHING, "k": "a", "x": x, "f": x, "s": str(n)} for n, x in enumerate([0.0, -0.0, NAN, -NAN, None])
]


def plain(value: Any) -> Any:
    """A value that equals another if Spark says so: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def check_percentiles(found: Any, exact: Any, values: list[Any], ranks: list[float]) -> None:
    """Each within the error of the two values that Spark's exact one lies between."""
    if not values:
        assert found is None
        assert exact is None
        return
    numbers = sorted((float(v) for v in values), key=lambda v: (math.isnan(v), v))
    for got, true, rank in zip(found, exact, ranks, strict=True):
        position = rank * (len(numbers) - 1)
        share = position - math.floor(position)
        low, high = abs(numbers[math.floor(position)]), abs(numbers[math.ceil(position)])
        if not math.isfinite(true):
            assert plain(got) == plain(true)
            continue
        slack = ERROR * (low if low == high else (1 - share) * low + share * high)
        assert abs(got - true) <= slack * (1 + 1e-9) + SMALLEST, (rank, got, true, numbers)


def check(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, row in found.items():
        for name in LISTS:
            assert plain(row[name]) == plain(expected[key][name]), (key, name)
        for name, column in (("p_x", "x"), ("p_d", "d")):
            check_percentiles(row[name], expected[key][name], expected[key][f"all_{column}"], RANKS)
        middle, true = ([v] if v is not None else None for v in (row["p_i"], expected[key]["p_i"]))
        check_percentiles(middle, true, expected[key]["all_i"], [0.5])


def oracle(spark: SparkSession, table: pa.Table, keys: list[str]) -> dict[Any, Any]:
    exact = {name: aggregate.sql() for name, aggregate in PERCENTILES.items()}
    whole = {f"all_{column}": f"collect_list({column})" for column in ("x", "d", "i")}
    rows = batch(spark, spark.createDataFrame(table), keys, {**ORACLES, **exact, **whole}).collect()
    return {tuple(row[key] for key in keys): row.asDict() for row in rows}


def newest(spark: SparkSession, out: Path) -> dict[Any, Any]:
    return {(row["k"],): row.asDict() for row in last_per_key(spark, out, ["k"]).collect()}


@given(
    data=st.lists(_rows, min_size=1, max_size=40),
    per_epoch=st.integers(3, 20),
    tasks=st.integers(1, 4),
    bits=st.sampled_from([64, 8]),
    way=st.sampled_from(WAYS),
)
@example(data=ZEROS, per_epoch=1, tasks=2, bits=64, way="spark")
@example(data=ZEROS, per_epoch=3, tasks=2, bits=8, way="direct")
@example(data=[NOTHING], per_epoch=3, tasks=1, bits=64, way="direct")
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
def test_any_epochs_and_tasks_equal_a_batch(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data, per_epoch, tasks, bits, way
) -> None:
    home = tmp_path_factory.getbasetemp() / "lists"
    shutil.rmtree(home, ignore_errors=True)
    table = pa.Table.from_pylist(data, SCHEMA)
    flow = hf.Flow("lists")
    rows = flow.source("rows", source(home, table, per_epoch, way))
    rows.group_by("k").agg(**AGGREGATES).named("lists").to(hf.parquet(str(home / "out")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=tasks, hash_bits=bits)
    assert_way(home / "work", "lists", way)
    check(newest(spark, home / "out"), oracle(spark, table, ["k"]))


# In windows and over everything, with a restart in the middle.
KINDS = {
    "total": ({}, None),
    "tumbling": ({"tumbling": "20 minutes"}, "window(ts, '20 minutes')"),
    "sliding": ({"sliding": ("30 minutes", "20 minutes")}, "window(ts, '30 minutes', '20 minutes')"),
    "session": ({"session": "3 minutes"}, "session_window(ts, '3 minutes')"),
}
IN_WINDOWS = {
    "p": hf.percentile("v + 60", RANKS),
    "listed": hf.collect_list("k"),
    "tops": hf.top_k("struct(v, k)", 2, by="id"),
}


def in_windows(home: Path, schema: pa.Schema) -> hf.Flow:
    flow = hf.Flow("kinds")
    files = hf.files(str(home / "in"), schema=ddl(schema), max_files_per_epoch=1)
    rows = flow.source("rows", files)
    for name, (window, _) in KINDS.items():
        grouped = rows.group_by()
        grouped = grouped.window("ts", late="10 minutes", **window) if window else grouped
        grouped.agg(**IN_WINDOWS).named(name).to(hf.parquet(str(home / name)))
    return flow


def test_windows_sessions_and_totals_equal_a_batch_across_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = events(3, 90, disorder_us=600_000_000)
    files = [table.slice(start, 30) for start in (0, 30, 60)]
    write_files(tmp_path / "in", [files[0], files[0].slice(0, 0), files[1]])
    in_windows(tmp_path, table.schema).run(tmp_path / "work", until_idle=True, spark=spark, tasks=2)
    write_files(tmp_path / "in", files[2:], first=3)
    in_windows(tmp_path, table.schema).run(tmp_path / "work", drain=True, spark=spark, tasks=3)
    sql = {name: aggregate.sql() for name, aggregate in IN_WINDOWS.items()} | {"v": "collect_list(v + 60)"}
    for name, (_, window) in KINDS.items():
        rows = spark.createDataFrame(table).groupBy(*([] if window is None else [f.expr(window).alias("w")]))
        exact = rows.agg(*(f.expr(text).alias(column) for column, text in sql.items())).collect()
        found = read_sink(tmp_path / name).to_pylist()
        found = sorted(found, key=lambda row: row["epoch"])[-1:] if window is None else found
        expected = {row["w"]["start"].timestamp() if window is not None else None: row for row in exact}
        assert len(found) == len(expected)
        for row in found:
            true = expected[row["window_start"].timestamp() if window is not None else None]
            assert row["listed"] == true["listed"]
            assert row["tops"] == [one.asDict() for one in true["tops"]]
            check_percentiles(row["p"], true["p"], true["v"], RANKS)
    (shown,) = holdfast("state", "total", "--work-dir", tmp_path / "work", "--json").json["rows"]
    total = sorted(read_sink(tmp_path / "total").to_pylist(), key=lambda row: row["epoch"])[-1]
    assert (shown["p"], shown["listed"]) == (total["p"], total["listed"])


def run(spark: SparkSession, home: Path, **aggregates: hf.Aggregate) -> list[dict[str, Any]]:
    """Three epochs of one row each, for one key."""
    columns = {"k": [1, 1, 1], "v": [1, 2, 30], "m": [[("a", 1)]] * 3, "ts": [_START] * 3}
    kinds = {"m": pa.map_(pa.string(), pa.int64()), "ts": pa.timestamp("us", "UTC")}
    table = pa.table({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})
    flow = hf.Flow("bounded")
    grouped = flow.source("rows", hf.rows(table, per_epoch=1)).group_by("k")
    grouped.agg(**aggregates).named("lists").to(hf.parquet(str(home / "out")))
    flow.run(home / "work", until_idle=True, spark=spark, tasks=2)
    return read_sink(home / "out").to_pylist()


@pytest.mark.parametrize(
    ("stops", "goes_on", "told", "value"),
    [
        (hf.collect_list("v", max=2), hf.collect_list("v", max=3), "collects more than 2 values", [1, 2, 30]),
        (hf.percentile("v", 0.5, max=2), hf.percentile("v", 0.5, max=3), "more than 2 buckets", 2.015625),
    ],
    ids=["collect_list", "percentile"],
)
def test_a_key_beyond_the_bound_stops_the_flow_until_it_may_have_more(
    spark: SparkSession, tmp_path: Path, stops: hf.Aggregate, goes_on: hf.Aggregate, told: str, value: object
) -> None:
    with pytest.raises(hf.InputError, match=f"aggregate 'd' .*{told}") as caught:
        run(spark, tmp_path, d=stops)
    assert (caught.value.stage, caught.value.epoch, caught.value.heals) == ("lists", 2, False)
    assert "larger max=" in str(caught.value)
    assert run(spark, tmp_path, d=goes_on)[-1]["d"] == value


def test_another_k_order_rank_or_error_is_another_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    as_it_was = {"t": hf.top_k("v", 2), "l": hf.collect_list("v", by="ts"), "p": hf.percentile("v", 0.5)}
    run(spark, tmp_path, **as_it_was)
    for edit, told in {
        "t": (hf.top_k("v", 3), r"aggregate t: max_by\(v, v, 2\) -> max_by\(v, v, 3\)"),
        "l": (hf.collect_list("v"), r"collect_list\(v, by ts\) -> collect_list\(v\)"),
        "p": (hf.percentile("v", 0.5, error=0.02), r"error 0\.01\) -> percentile\(v, 0\.5, error 0\.02\)"),
    }.items():
        with pytest.raises(hf.StateSchemaError, match=told[1]):
            run(spark, tmp_path, **{**as_it_was, edit: told[0]})
    last = run(spark, tmp_path, **{**as_it_was, "l": hf.collect_list("v", by="ts", max=50)})[-1]
    assert (last["t"], last["l"]) == ([30, 2], [1, 2, 30])


@pytest.mark.parametrize(
    ("aggregate", "told"),
    [
        (hf.collect_list("m"), r"'m' in order.* a map.*map_entries"),
        (hf.collect_list("v", by="m"), r"'m' in order.* a map"),
        (hf.collect_list("null"), r"'null' in order.* a void.*cast\(null"),
        (hf.top_k("string(v) collate UNICODE_CI", 2), r"string with a collation.*collation_key"),
        (hf.collect_list("v", by="max(v)"), "looks at several rows"),
        (hf.percentile("ts", 0.5), r"unix_micros\(t\)|cannot be computed"),
        (hf.percentile("string(v)", 0.5), r"is of type string, not of a number.*cast\(x as double\)"),
        (hf.percentile("k > 1", 0.5), "not of a number|cannot be computed"),
    ],
    ids=lambda value: value.text() if isinstance(value, hf.Aggregate) else "",
)
def test_types_without_an_order_or_a_number_are_refused_when_the_flow_is_bound(
    spark: SparkSession, tmp_path: Path, aggregate: hf.Aggregate, told: str
) -> None:
    with pytest.raises(hf.PlanError, match=told) as caught:
        run(spark, tmp_path, d=aggregate)
    assert (caught.value.stage, caught.value.operation) == ("lists", "bind")
    assert not (tmp_path / "out").exists()
