"""The figure of the join benchmark, and that its data give every side the same work."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from holdfast.bench import join
from holdfast.bench.rounds import Size
from holdfast.core.duration import microseconds


def test_the_figure_is_throughput_against_sparks_join() -> None:
    rounds = {"holdfast": [[0.5, 0.5]], "spark_rocksdb": [[3.0, 3.0]]}
    found = {figure.name: figure.value for figure in join.figures_of(rounds)}
    assert found == {"join_vs_spark_rocksdb": 6.0}
    assert set(found) == set(join.BARS)


def test_one_side_alone_has_no_figure() -> None:
    assert join.figures_of({"spark_rocksdb": [[2.0]]}) == []


def test_a_row_has_one_partner_on_average() -> None:
    near_s = microseconds(join.NEAR, "near") / 1_000_000
    rows_in_reach = 2 * near_s * join.SIZE.rows / join.SPAN_S
    assert rows_in_reach == join.KEYS


def test_the_files_of_both_streams_keep_step_and_differ(tmp_path: Path) -> None:
    size = Size("tiny", 50, warmup=1, epochs=2, rounds=1, sides=tuple(join.SIDES))
    made = join.inputs(tmp_path, size, 20, 1)
    assert made.right is not None
    assert len(made.files) == len(made.right.files) == 3
    for left, right in zip(made.files, made.right.files, strict=True):
        one, other = pq.read_table(left), pq.read_table(right)
        assert one.num_rows == other.num_rows == 50
        assert not one.equals(other)
