"""The growth benchmark's loop and figures, driven by a made-up state instead of Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.bench import growth
from holdfast.bench.growth import EpochSample, GrowthRun, figures_of, grouped, per_position, seeded_runs

TURNS: list[str] = []


class MadeUpDriver:
    """Each epoch costs 1 s and writes 100 bytes; every second one merges 300; all levels merge at `merged_at`."""

    merged_at = 14

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.epochs = 0
        self.closed = False

    def prefill(self, keys: int) -> None:
        self.keys = keys

    def epoch(self, file: Path) -> EpochSample:
        assert file.exists()
        TURNS.append(self.name)
        self.epochs += 1
        return EpochSample(1.0, 0.5, 100)

    def merge_bytes(self) -> int:
        return self.epochs // 2 * 300

    def every_level_merged(self) -> bool:
        return self.epochs >= self.merged_at

    def close(self) -> None:
        self.closed = True


def run_made_up(
    tmp_path: Path, epochs_min: int, epochs_max: int = 100
) -> tuple[list[GrowthRun], list[MadeUpDriver]]:
    TURNS.clear()
    drivers: list[MadeUpDriver] = []

    def make(directory: Path) -> MadeUpDriver:
        drivers.append(MadeUpDriver(directory))
        return drivers[-1]

    runs = seeded_runs(
        make, tmp_path, sizes=(1000, 2000), touched=10, epochs_min=epochs_min, epochs_max=epochs_max, seed=1
    )
    return runs, drivers


def test_sizes_take_turns_epoch_by_epoch(tmp_path: Path) -> None:
    run_made_up(tmp_path, epochs_min=6)
    assert TURNS == ["state-1000", "state-2000"] * (growth.WARMUP_EPOCHS + 6)


def test_it_goes_on_until_every_level_has_merged(tmp_path: Path) -> None:
    runs, _ = run_made_up(tmp_path, epochs_min=2)
    assert [len(run.samples) for run in runs] == [MadeUpDriver.merged_at - growth.WARMUP_EPOCHS] * 2
    assert all(run.every_level_merged for run in runs)


def test_a_level_that_never_merges_is_waited_for_within_bounds_and_told(tmp_path: Path) -> None:
    runs, drivers = run_made_up(tmp_path, epochs_min=2, epochs_max=3)
    assert [len(run.samples) for run in runs] == [3, 3]
    assert not any(run.every_level_merged for run in runs)
    assert all(driver.closed for driver in drivers)


def test_merges_before_the_first_counted_epoch_are_not_charged(tmp_path: Path) -> None:
    runs, _ = run_made_up(tmp_path, epochs_min=10)
    assert [run.merge_bytes for run in runs] == [10 // 2 * 300] * 2


def samples(*seconds: float, bytes_each: int = 100) -> list[EpochSample]:
    return [EpochSample(second, second / 2, bytes_each) for second in seconds]


def test_a_stall_of_one_seed_is_noise_and_of_all_seeds_is_not() -> None:
    runs = [
        GrowthRun(10, seed=1, samples=samples(1, 9, 5)),
        GrowthRun(10, seed=2, samples=samples(1, 1, 5)),
        GrowthRun(10, seed=3, samples=samples(1, 1, 5, 7)),
    ]
    assert per_position(runs, lambda sample: sample.seconds) == [1, 1, 5]


def test_figures_compare_the_largest_state_with_the_smallest() -> None:
    runs = [
        GrowthRun(100, seed=1, samples=samples(1, 1, 2), merge_bytes=600),
        GrowthRun(500, seed=1, samples=samples(1, 1, 4), merge_bytes=1200),
        GrowthRun(900, seed=1, samples=samples(2, 2, 2, bytes_each=110), merge_bytes=330),
    ]
    found = {figure.name: figure.value for figure in figures_of(grouped(runs))}
    assert found == {
        "time_10m_over_100k": 2.0,
        "operator_time_10m_over_100k": 2.0,
        "layer_bytes_10m_over_100k": pytest.approx(1.1),
        "merge_bytes_over_layer_bytes": 4.0,
        "longest_over_median": 4.0,
    }
    assert set(found) == set(growth.BARS)


def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    session_is_not_used = object()
    growth.run(
        tmp_path / "growth.json",
        directory=tmp_path,
        quick=True,
        spark=session_is_not_used,  # type: ignore[arg-type]
        make_driver=lambda spark, directory: MadeUpDriver(directory),
    )
    found = json.loads((tmp_path / "growth.json").read_text())
    assert set(found["figures"]) == set(growth.BARS)
    assert len(found["runs"]) == 6
