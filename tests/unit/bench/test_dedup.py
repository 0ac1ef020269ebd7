"""The figures of the dedup benchmark."""

from __future__ import annotations

from holdfast.bench import dedup
from holdfast.core.duration import microseconds


def test_figures_are_throughput_against_both_peers() -> None:
    rounds = {
        "holdfast": [[0.5, 0.5]],
        "spark_within_watermark": [[3.0, 3.0]],
        "spark_dropduplicates": [[2.0, 2.0]],
    }
    found = {figure.name: figure.value for figure in dedup.figures_of(rounds)}
    assert found == {"vs_spark_within_watermark": 6.0, "vs_spark_dropduplicates": 4.0}
    assert {*found, "bytes_per_id"} == set(dedup.BARS)


def test_peers_alone_have_no_figures() -> None:
    assert dedup.figures_of({"spark_dropduplicates": [[2.0]]}) == []


def test_bytes_per_id_is_of_the_live_ids() -> None:
    assert dedup.bytes_per_id({"state_bytes": 2_600, "state_rows": 100}).value == 26.0


def test_no_id_expires_within_a_round() -> None:
    within_s = microseconds(dedup.WITHIN, "within") / 1_000_000
    for size in (dedup.SIZE, dedup.WARM, dedup.FILL):
        assert (size.warmup + size.epochs) * dedup.SPAN_S < within_s
