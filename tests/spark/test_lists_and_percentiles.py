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

import holdfast as hf
from batch import WAYS, assert_way, batch, last_per_key, source

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
