"""Joins of every kind equal a nested loop over the rows on time, whatever the epochs, the tasks and the hash.

Each example also holds the join to what others rely on: nothing leaves from before the frontier that the epoch before it
gave, and the number of rows that the state is said to have is what it has.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

import holdfast as hf
from holdfast.flow.joins import HOWS
from holdfast.flow.nodes import Join
from holdfast.protocols.watermark import InputClock, watermark
from holdfast.spark.keys import HASH, even_boundaries
from holdfast.spark.operators.contract import Changes, Times
from holdfast.spark.operators.existence import ExistenceOperator
from holdfast.spark.operators.join import JoinOperator
from holdfast.spark.operators.join_binding import bind_join
from holdfast.state.canonical import in_slots
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.run import RunInfo, forget_open_runs
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, hash_of

SECOND = 1_000_000
TIME = pa.timestamp("us", "UTC")
LEFT = t.StructType().add("k", t.DoubleType()).add("ts", t.TimestampType()).add("v", t.StringType())
RIGHT = (
    t.StructType()
    .add("k", t.DoubleType())
    .add("at", t.TimestampType())
    .add("w", t.StringType())
    .add("x", t.LongType())
)

Joined = JoinOperator | ExistenceOperator


@dataclass(frozen=True)
class Row:
    """A row of either side; `name` tells it from all others but its copies."""

    side: int
    key: float | None
    at_us: int
    name: str


def near(one: Row, other: Row, bounds: tuple[int, int]) -> bool:
    if one.key is None or other.key is None:
        return False
    equal = one.key == other.key or (math.isnan(one.key) and math.isnan(other.key))
    return equal and bounds[0] * SECOND <= other.at_us - one.at_us <= bounds[1] * SECOND


def nested_loop(rows: list[Row], how: str, bounds: tuple[int, int]) -> Counter[tuple[str | None, ...]]:
    """Of each row of the output the key, as text, and the names of the rows that it is made of."""
    left, right = ([row for row in rows if row.side == side] for side in (0, 1))
    pairs = [(one, other) for one in left for other in right if near(one, other, bounds)]
    partners = {id(row) for pair in pairs for row in pair}
    if how in ("semi", "anti"):
        return Counter((repr(one.key), one.name) for one in left if (id(one) in partners) == (how == "semi"))
    # As in Spark: a pair of a right join has the key of its right row, and 0.0 equals -0.0.
    of_keys = 1 if how == "right" else 0
    found = Counter((repr(pair[of_keys].key), pair[0].name, pair[1].name) for pair in pairs)
    if how in ("left", "full"):
        found.update((repr(row.key), row.name, None) for row in left if id(row) not in partners)
    if how in ("right", "full"):
        found.update((repr(row.key), None, row.name) for row in right if id(row) not in partners)
    return found


def operator(how: str, bounds: tuple[int, int], late_s: int, ports: frozenset[str]) -> Joined:
    flow = hf.Flow("f")
    left, right = (flow.source(name, hf.files("in/", schema="k double")) for name in "lr")
    within = (f"{bounds[0]} seconds", f"{bounds[1]} seconds")
    stream = left.join(right, on="k", time=("ts", "at"), within=within, how=how, late=f"{late_s} seconds")
    assert isinstance(stream.node, Join)
    return bind_join("j", stream.node, (LEFT, RIGHT), 2, ports, 64)


def table(join: Joined, rows: list[Row], side: int, cut: bool) -> pa.Table | None:
    """Rows of a side as their input has them, with their hash; all that would not be read is left out."""
    own = [row for row in rows if row.side == side]
    normal = [None if row.key is None else "nan" if math.isnan(row.key) else row.key + 0.0 for row in own]
    h = np.array([hash_of(key) for key in normal], np.int64)
    times = pa.array([row.at_us for row in own], pa.int64()).cast(TIME)
    names = pa.array([row.name for row in own], pa.string())
    columns = {
        "k": pa.array([row.key for row in own], pa.float64()),
        ("ts", "at")[side]: times,
        ("v", "w")[side]: names,
        "x": pa.array(range(len(own)), pa.int64()),
    }
    read = {name: columns[name] for name in join.clocks[side].side.names}
    return pa.table({**read, HASH: pa.array(h & -(1 << 63) if cut else h)}) if own else None


@dataclass
class Played:
    """A stage that runs one epoch after the other on the state that those before it left."""

    join: Joined
    root: Path
    tasks: int
    cut: bool

    def __post_init__(self) -> None:
        self.layers: list[LayerInfo] = []
        self.newest: list[int | None] = [None, None]
        self.watermark: int | None = None
        self.on_time: list[Row] = []
        self.out: Counter[tuple[str | None, ...]] = Counter()
        self.state_rows = 0
        self.epoch = 0

    def reads(self, rows: list[Row], late_s: int) -> None:
        clocks = [InputClock(newest, None) for newest in self.newest]
        reached = watermark(self.watermark, clocks, late_s * SECOND)
        self.on_time += [row for row in rows if reached is None or row.at_us >= reached]
        self._run(rows, reached)

    def drains(self) -> None:
        live = self._spine(ALL).live_buckets()
        if live.size and self.join.timing.emits_at_close:
            self._run([], int(live.max()))

    def merges(self) -> None:
        """All layers become one."""
        rows = self._spine(ALL).rows()
        runs = write_layer(self.root, f"merged-{self.epoch}", rows, self.join.state, ALL)
        self.layers = [LayerInfo(0, self.epoch, runs)]

    @property
    def state(self) -> pa.Table:
        return self._spine(ALL).rows()

    def _spine(self, slots: tuple[int, int]) -> Spine:
        floor = self.join.timing.floor(self.watermark)
        return Spine(self.root, self.join.state, self.layers, slots, floor)

    def _run(self, rows: list[Row], reached: int | None) -> None:
        frontier = self.join.timing.frontier(self.watermark, ())
        bounds, runs = even_boundaries(self.tasks), list[RunInfo]()
        sides = [table(self.join, rows, side, self.cut) for side in (0, 1)]
        for task, slots in enumerate(pairwise(bounds)):
            changes = self._task(sides, slots, reached)
            name = f"{self.epoch}-{task}"
            runs += write_layer(self.root, name, changes.layer, self.join.state, slots)
            self._account(changes, frontier)
        self.layers.append(LayerInfo(self.epoch, self.epoch, tuple(runs)))
        self.watermark, self.epoch = reached, self.epoch + 1
        assert self.state.num_rows == self.state_rows

    def _task(self, sides: list[pa.Table | None], slots: tuple[int, int], reached: int | None) -> Changes:
        own = [
            None if rows is None else rows.filter(pa.array(in_slots(np.asarray(rows[HASH]), slots)))
            for rows in sides
        ]
        own = [rows if rows is not None and rows.num_rows else None for rows in own]
        spine, times = self._spine(slots), Times(reached, 0, self.epoch)
        if all(rows is None for rows in own):
            return self.join.apply(self.join.received.empty_table(), spine, times)
        return self.join.apply_rows(own, spine, times)

    def _account(self, changes: Changes, frontier: int) -> None:
        out = changes.outputs["out"]
        names = [out[name].to_pylist() for name in ("v", "w") if name in out.column_names]
        self.out.update(zip(map(repr, out["k"].to_pylist()), *names, strict=True))
        for column in (name for name in ("ts", "at") if name in out.column_names):
            micros = out[column].cast(pa.int64()).to_pylist()
            assert all(at >= frontier for at in micros if at is not None)
        self.state_rows += changes.keys_added
        pairs = zip(self.newest, changes.newest_us, strict=True)
        self.newest = [max((at for at in pair if at is not None), default=None) for pair in pairs]


def random_rows(seed: int, epochs: int, pace: int) -> list[list[Row]]:
    """Many rows a key, some equal, in every epoch a little further in event time; of some epochs a side has none."""
    rng = np.random.default_rng(seed)
    keys = [None, 0.0, -0.0, math.nan, 1.5, 2.5][: rng.integers(2, 7)]
    found = []
    for number in range(epochs):
        sides = rng.integers(2, size=rng.integers(0, 25)) if rng.random() < 0.8 else [rng.integers(2)] * 5
        seconds = pace * number + rng.integers(0, 10, len(sides))
        ticks = rng.choice([0, 0, 1, SECOND - 1], len(sides))
        found.append(
            [
                Row(int(side), keys[rng.integers(len(keys))], int(at), "abcdef"[rng.integers(6)])
                for side, at in zip(sides, seconds * SECOND + ticks, strict=True)
            ]
        )
    return found


spans = st.tuples(st.integers(-8, 8), st.integers(0, 10)).map(lambda span: (span[0], sum(span)))


@given(
    how=st.sampled_from(HOWS),
    seed=st.integers(0, 2**32),
    epochs=st.integers(0, 8),
    bounds=spans,
    pace=st.sampled_from([0, 2, 5]),
    late_s=st.sampled_from([0, 2, 60]),
    tasks=st.integers(1, 3),
    cut=st.booleans(),
    merged_at=st.integers(0, 6),
    ports=st.sampled_from([frozenset(), frozenset({"late_right"})]),
)
@settings(max_examples=settings().max_examples * 2)
def test_every_kind_equals_a_nested_loop(
    tmp_path_factory: pytest.TempPathFactory,
    how,
    seed,
    epochs,
    bounds,
    pace,
    late_s,
    tasks,
    cut,
    merged_at,
    ports,
) -> None:
    root = tmp_path_factory.getbasetemp() / "join-kinds"
    shutil.rmtree(root, ignore_errors=True)
    forget_open_runs()
    join = operator(how, bounds, late_s, ports)
    played = Played(join, root, tasks, cut)
    for number, came in enumerate(random_rows(seed, epochs, pace)):
        if number == merged_at:
            played.merges()
        played.reads(came, late_s)
    played.drains()
    assert played.out == nested_loop(played.on_time, how, bounds)
    if how in ("semi", "anti"):
        right = played.state.filter(pa.array(np.asarray(played.state["_h"]) & 1 == 1))
        assert all(right[name].null_count == right.num_rows for name in ("c1", "c2"))
        assert "c3" not in played.state.column_names
