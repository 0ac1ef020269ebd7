"""The figures of the windows benchmark, and the span of event time that it counts."""

from __future__ import annotations

import pytest

from holdfast.bench import windows
from holdfast.core.duration import microseconds


@pytest.mark.parametrize("kind", list(windows.KINDS))
def test_figures_compare_medians_and_means(kind: str) -> None:
    rounds = {"holdfast": [[1.0, 1.0, 4.0]], "spark_rocksdb": [[3.0, 3.0, 6.0]]}
    assert {figure.name: figure.value for figure in windows.figures_of(kind, rounds)} == {
        f"{kind}_vs_spark_rocksdb": 3.0,
        f"{kind}_vs_spark_rocksdb_mean": 2.0,
    }


def test_every_kind_has_a_bar() -> None:
    assert {f"{kind}_vs_spark_rocksdb" for kind in windows.KINDS} == set(windows.BARS)


def test_one_side_alone_has_no_figures() -> None:
    assert windows.figures_of("tumbling", {"holdfast": [[1.0]]}) == []


def test_windows_close_before_and_while_epochs_count() -> None:
    window_s, late_s = (microseconds(text, "it") / 1_000_000 for text in (windows.WINDOW, windows.LATE))
    assert windows.SIZE.warmup * windows.SPAN_S > window_s + late_s
    assert windows.SIZE.epochs * windows.SPAN_S >= 2 * window_s
