"""The state benchmark: its figures from made-up rounds, and once for real, tiny, on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.bench import state


def test_figures_are_throughput_against_systems_and_time_over_the_stateless_job() -> None:
    rounds = {
        "holdfast": [[0.5, 0.5]],
        "spark_rocksdb": [[3.0, 3.0]],
        "spark_default": [[2.0, 2.0]],
        "stateless": [[0.25, 0.25]],
    }
    assert {figure.name: figure.value for figure in state.figures_of("200k", rounds)} == {
        "vs_spark_rocksdb_200k": 6.0,
        "vs_spark_default_200k": 4.0,
        "over_stateless_200k": 2.0,
    }


def test_every_figure_with_a_bar_comes_from_some_size() -> None:
    found = {
        figure.name
        for size in state.SIZES
        for figure in state.figures_of(size.label, {name: [[1.0]] for name in size.sides})
    }
    assert found == set(state.BARS)


def test_an_unknown_epoch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch sizes"):
        state.run(rows=(5,))


@pytest.mark.slow
def test_the_peers_run_side_by_side(tmp_path: Path) -> None:
    state.run(
        tmp_path / "state.json",
        directory=tmp_path,
        quick=True,
        rows=(200_000,),
        sides=("spark_rocksdb", "spark_default", "stateless"),
    )
    found = json.loads((tmp_path / "state.json").read_text())
    assert {run["side"] for run in found["runs"]} == {"spark_rocksdb", "spark_default", "stateless"}
    assert all(len(run["seconds"]) == 2 for run in found["runs"])
