"""The figures of the benchmark of sinks, what it refuses, and that its epochs are what it says of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.bench import edges
from holdfast.bench.edges_contract import Where
from holdfast.bench.edges_data import ARROW, epoch_set, segments_of
from holdfast.bench.report import Figure
from holdfast.core.errors import PlanError

WHERE = Where("postgresql://me:secret@nowhere.invalid/none", Path("postgresql.jar"), "nowhere.invalid:9092")


def test_every_figure_with_a_bar_is_computed() -> None:
    found: dict[str, float] = {}
    for make in edges.EDGES.values():
        edge = make(WHERE)
        rounds = {side: [[2.0, 2.0]] * (1 if side in edge.slow else 3) for side in edge.sides}
        rounds["holdfast"] = [[1.0, 1.0]] * 3
        found |= {figure.name: figure.value for figure in edge.figures(rounds)}
        assert set(edge.bars) <= set(found)
    assert found["postgres_append_vs_spark_jdbc"] == found["postgres_upsert_vs_spark_jdbc"] == 2.0
    assert found["postgres_append_over_plain"] == 0.5
    assert found["staging_over_direct"] == 1.0


def test_exactly_once_is_told_where_it_costs_most() -> None:
    figures = [
        Figure("a_over_plain", 1.1, 1.0, 1.2),
        Figure("b_over_plain", 1.3, 1.2, 1.4),
        Figure("c", 9, 9, 9),
    ]
    assert edges.worst(figures) == [Figure("exactly_once_over_plain", 1.3, 1.2, 1.4)]
    assert edges.worst([]) == []


def test_a_server_that_is_not_named_and_a_target_that_is_not_known_are_refused() -> None:
    with pytest.raises(PlanError, match="no PostgreSQL"):
        edges.run(quick=True)
    with pytest.raises(PlanError, match="there is no 'paper'"):
        edges.run(quick=True, only=["paper"])
    with pytest.raises(PlanError, match="no Kafka"):
        edges.run(quick=True, where=Where(WHERE.postgres))
    assert "secret" not in repr(WHERE)


def test_without_its_driver_spark_has_no_side_on_postgresql() -> None:
    without = Where(WHERE.postgres)
    assert not any(
        "spark" in side for name in edges.NEED_POSTGRES for side in edges.EDGES[name](without).sides
    )


def test_the_keys_of_an_epoch_differ_and_half_of_them_were_there_before(tmp_path: Path) -> None:
    made = epoch_set(tmp_path, rows=1_000, warmup=1, epochs=2, seed=1)
    assert len(made.files) == 3
    seen: list[set[int]] = []
    for epoch in made.files:
        tables = [pq.read_table(segment) for segment in segments_of(epoch)]
        assert [table.num_rows for table in tables] == [500, 500]
        rows = pa.concat_tables(tables)
        assert rows.schema.equals(ARROW)
        seen.append(set(rows["id"].to_pylist()))
        assert len(seen[-1]) == 1_000
        assert rows["note"].null_count > 500
    assert 400 < len(seen[0] & seen[1]) < 600
    assert epoch_set(tmp_path, rows=1_000, warmup=1, epochs=2, seed=1) == made
