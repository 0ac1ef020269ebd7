"""The join's work inside a task: the same for any order of rows, and never a row or a key at a time."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import holdfast as hf
from holdfast.flow.nodes import Join
from holdfast.spark.operators.contract import Changes, Times
from holdfast.spark.operators.join import JoinOperator
from holdfast.spark.operators.join_binding import bind_join
from holdfast.state.digest import digest
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, mixed

SECOND = 1_000_000
COLUMNS = t.StructType(
    [
        t.StructField("k", t.LongType()),
        t.StructField("ts", t.TimestampType()),
        t.StructField("v", t.StringType()),
    ]
)


def operator(how: str) -> JoinOperator:
    """A join by `k` of two sides of the same columns, times ten seconds apart at most."""
    flow = hf.Flow("f")
    left, right = (flow.source(name, hf.files("in/", schema="k long")) for name in "lr")
    near = ("-10 seconds", "10 seconds")
    node = left.join(right, on="k", time=("ts", "ts"), within=near, how=how).node
    assert isinstance(node, Join)
    return bind_join("j", node, (COLUMNS, COLUMNS), 2, frozenset(), 64)


def rows(
    join: JoinOperator, seed: int, count: int, keys: int, first_s: int = 0, span_s: int = 10
) -> pa.Table:
    rng = np.random.default_rng(seed)
    key = rng.integers(keys, size=count)
    h = (mixed(key) & -2) | rng.integers(2, size=count)
    time = (first_s + rng.integers(span_s, size=count)) * SECOND
    text = pa.DictionaryArray.from_arrays(pa.array(rng.integers(3, size=count)), pa.array(["x", "y", None]))
    columns = [
        pa.array(h),
        pa.array(key),
        pa.array(time).view(pa.timestamp("us", "UTC")),
        text.cast(pa.string()),
    ]
    return pa.table(columns, schema=join.received)


def applied(
    join: JoinOperator, root: Path, epochs: list[pa.Table], watermarks: list[int | None]
) -> list[Changes]:
    """Run epochs one after the other, each on the state that those before it left."""
    done: list[Changes] = []
    layers: list[LayerInfo] = []
    for number, (table, watermark) in enumerate(zip(epochs, watermarks, strict=True)):
        done.append(join.apply(table, Spine(root, join.state, layers, ALL), Times(watermark, 0, number)))
        runs = write_layer(root, f"{number}/layer", done[-1].layer, join.state, ALL)
        layers.append(LayerInfo(number, number, runs))
    return done


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_order_in_which_rows_come_changes_no_digest(tmp_path: Path, how: str) -> None:
    join = operator(how)
    tables = [rows(join, n, 400, 30, first_s=10 * n) for n in range(4)]
    rng = np.random.default_rng(9)
    shuffled = [table.take(pa.array(rng.permutation(400))) for table in tables]
    watermarks = [None, 0, 12 * SECOND, 25 * SECOND]
    digests = [
        [
            (digest(c.layer), digest(c.outputs["out"]))
            for c in applied(join, tmp_path / name, given, watermarks)
        ]
        for name, given in (("as-is", tables), ("shuffled", shuffled))
    ]
    assert digests[0] == digests[1]
    assert len({out for _, out in digests[0]}) == 4


def calls(join: JoinOperator, root: Path, keys: int) -> tuple[Counter[str], Changes]:
    """What is called while an epoch with two rows a key meets a state of as many, and how much came out."""
    tables = [rows(join, n, 2 * keys, keys, first_s=n * 5) for n in (0, 1)]
    (first,) = applied(join, root, tables[:1], [None])
    layer = LayerInfo(0, 0, write_layer(root, "again", first.layer, join.state, ALL))
    spine = Spine(root, join.state, [layer], ALL)
    # Blocks of files are checked once in a process, one call a block; what is counted comes behind that.
    join.apply(tables[1], spine, Times(5 * SECOND, 0, 1))
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            counted[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    sys.setprofile(count)
    try:
        changes = join.apply(tables[1], spine, Times(5 * SECOND, 0, 1))
    finally:
        sys.setprofile(None)
    return counted, changes


def test_a_million_keys_take_no_more_calls_than_a_thousand(tmp_path: Path) -> None:
    """A left join does all that an inner one does, and more."""
    join = operator("left")
    few, small = calls(join, tmp_path / "few", 1_000)
    many, large = calls(join, tmp_path / "many", 1_000_000)
    assert large.outputs["out"].num_rows > 500 * small.outputs["out"].num_rows > 500_000
    assert large.layer.num_rows >= 2_000_000
    # A search by halving takes a few steps more; nothing else may follow the number of rows.
    assert sum(many.values()) < sum(few.values()) + 100, (many - few).most_common(5)


def test_a_hot_key_costs_what_it_pairs_with(tmp_path: Path) -> None:
    """One key with 20,000 rows a side over an hour: of 400 million pairs those near each other are looked at."""
    join = operator("inner")
    table = rows(join, 1, 40_000, 1, span_s=3600)
    (first,) = applied(join, tmp_path, [table], [None])
    layer = LayerInfo(0, 0, write_layer(tmp_path, "again", first.layer, join.state, ALL))
    spine = Spine(tmp_path, join.state, [layer], ALL)
    changes = join.apply(rows(join, 2, 100, 1, first_s=1800, span_s=1), spine, Times(None, 0, 1))
    assert 5_000 < spine.rows_examined < changes.outputs["out"].num_rows < 20_000
