"""The figures of the growth benchmark."""

from __future__ import annotations

import pytest

from holdfast.bench import growth
from holdfast.bench.growth import EpochSample, GrowthRun, figures_of, grouped, per_position


def grown(keys: int, seed: int, samples: list[EpochSample], merge_bytes: int = 0) -> GrowthRun:
    return GrowthRun(keys, seed, samples, merge_bytes, every_level_merged=True)


def samples(*seconds: float, bytes_each: int = 100) -> list[EpochSample]:
    return [EpochSample(second, second / 2, bytes_each) for second in seconds]


def test_a_stall_of_one_seed_is_noise_and_of_all_seeds_is_not() -> None:
    runs = [
        grown(10, seed=1, samples=samples(1, 9, 5)),
        grown(10, seed=2, samples=samples(1, 1, 5)),
        grown(10, seed=3, samples=samples(1, 1, 5, 7)),
    ]
    assert per_position(runs, lambda sample: sample.seconds) == [1, 1, 5]


def test_figures_compare_the_largest_state_with_the_smallest() -> None:
    runs = [
        grown(100, seed=1, samples=samples(1, 1, 2), merge_bytes=600),
        grown(500, seed=1, samples=samples(1, 1, 4), merge_bytes=1200),
        grown(900, seed=1, samples=samples(2, 2, 2, bytes_each=110), merge_bytes=330),
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


def test_a_run_is_long_enough_for_the_bottom_to_merge() -> None:
    assert growth.epochs_to_merge_all(10_000_000, 10_000) > 10_000_000 / 2 / 10_000
