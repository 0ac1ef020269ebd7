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
from holdfast.flow.joins import HOWS
from holdfast.flow.nodes import Join
from holdfast.spark.operators.contract import Changes, Times
from holdfast.spark.operators.existence import ExistenceOperator
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


Joined = JoinOperator | ExistenceOperator


def operator(how: str) -> Joined:
    """A join by `k` of two sides of the same columns, times ten seconds apart at most."""
    flow = hf.Flow("f")
    left, right = (flow.source(name, hf.files("in/", schema="k long")) for name in "lr")
    near = ("-10 seconds", "10 seconds")
    node = left.join(right, on="k", time=("ts", "ts"), within=near, how=how).node
    assert isinstance(node, Join)
    return bind_join("j", node, (COLUMNS, COLUMNS), 2, frozenset(), 64)


def rows(join: Joined, seed: int, count: int, keys: int, first_s: int = 0, span_s: int = 10) -> pa.Table:
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


def of_side(rows: pa.Table, side: int) -> pa.Table:
    return rows.filter(pa.array((np.asarray(rows["_h"]) & 1) == side))


def applied(join: Joined, root: Path, epochs: list[pa.Table], watermarks: list[int | None]) -> list[Changes]:
    """Run epochs one after the other, each on the state that those before it left."""
    done: list[Changes] = []
    layers: list[LayerInfo] = []
    for number, (table, watermark) in enumerate(zip(epochs, watermarks, strict=True)):
        done.append(join.apply(table, Spine(root, join.state, layers, ALL), Times(watermark, 0, number)))
        runs = write_layer(root, f"{number}/layer", done[-1].layer, join.state, ALL)
        layers.append(LayerInfo(number, number, runs))
    return done


@pytest.mark.parametrize("how", HOWS)
def test_the_order_in_which_rows_come_changes_no_digest(tmp_path: Path, how: str) -> None:
    join = operator(how)
    tables = [rows(join, n, 400, 200, first_s=10 * n) for n in range(4)]
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
    assert len({layer for layer, _ in digests[0]}) == 4
    # What waits for the end of its slice leaves in the last epoch.
    assert len({out for _, out in digests[0]}) == (2 if how == "anti" else 4)


def calls(join: Joined, root: Path, keys: int) -> tuple[Counter[str], Changes]:
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


@pytest.mark.parametrize(("how", "keys"), [("left", 1_000_000), ("full", 100_000), ("semi", 100_000)])
def test_many_keys_take_no_more_calls_than_a_thousand(tmp_path: Path, how: str, keys: int) -> None:
    """A left join does all that an inner one does, and more; an anti join does what a semi join does."""
    join = operator(how)
    few, small = calls(join, tmp_path / "few", 1_000)
    many, large = calls(join, tmp_path / "many", keys)
    assert large.outputs["out"].num_rows > keys // 2_000 * small.outputs["out"].num_rows > keys // 2
    assert large.layer.num_rows >= keys
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


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_hot_key_costs_its_rows_where_one_partner_is_enough(tmp_path: Path, how: str) -> None:
    """20,000 rows a side within ten seconds of one key: 400 million pairs, of which none is made."""
    join = operator(how)
    table = rows(join, 1, 40_000, 1)
    right = of_side(table, 1)
    for name, given in (("epochs", [of_side(table, 0), right]), ("once", [table])):
        done = applied(join, tmp_path / name, given, [None] * len(given))
        gave = sum(changes.outputs["out"].num_rows for changes in done)
        assert gave == (0 if how == "anti" else 40_000 - right.num_rows)
        # The left rows are gone; of the right ones each moment is kept once.
        assert sum(changes.keys_added for changes in done) == 10


def test_of_right_rows_that_only_prove_a_partner_no_columns_are_kept(tmp_path: Path) -> None:
    join = operator("semi")
    (changes,) = applied(join, tmp_path, [rows(join, 1, 200, 500)], [None])
    kept = of_side(changes.layer, 1)
    assert kept.num_rows > 50
    assert [name for name in kept.column_names if kept[name].null_count == 0] == [
        *("_bucket", "_h", "_live", "time", "ordinal", "c0")
    ]
    assert join.description["right"] == "k bigint, ts timestamp"
