"""Progress is a line a stage for logs, an object a line for programs, a table for people."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from holdfast.interfaces.cli import progress as shown
from holdfast.ledger.lag import Lag, Standing
from holdfast.runtime.progress import EpochSample, MergeSample, Notice, Progress, Report, StageProgress


@pytest.fixture
def progress() -> Progress:
    made = Progress()
    made.resume("totals", 4, 90, {"late": 1})
    made.epoch_done("totals", EpochSample(5, 3000, 1.5, 0.1, 512, 0.0), 100, {"late": 2})
    made.merge_done("totals", MergeSample(0, 4, 100, 1))
    made.measured({"totals": Standing(Lag(3, 7000), 2048)})
    return made


def plain(text: io.StringIO) -> Console:
    return Console(file=text, markup=False, width=1000)


def test_a_plain_line_can_be_searched_for(progress: Progress) -> None:
    assert shown.plain_line("totals", progress.stage("totals")) == (
        "totals epoch=5 rows=3000 rows/s=2000 lag_rows=7000 lag_items=3 state_rows=100 state_bytes=2048 late=2"
    )


def test_lines_come_not_too_often_and_only_for_stages_that_moved(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    text = io.StringIO()
    view = shown.view_for(plain(text), quiet=False, as_json=False)
    view.show(progress)
    now[0] += 0.5
    progress.epoch_done("totals", EpochSample(6, 10, 0.1, 0.1, 0, 0.0), 100, {})
    view.show(progress)
    assert text.getvalue().count("\n") == 1
    now[0] += 2
    view.show(progress)
    assert text.getvalue().splitlines()[1].startswith("totals epoch=6 ")
    now[0] += 10
    view.show(progress)
    assert text.getvalue().count("\n") == 2


@pytest.mark.parametrize("terminal", [False, True])
def test_a_fail_over_is_told_once_and_at_once_with_its_reason(progress: Progress, terminal: bool) -> None:
    text = io.StringIO()
    out = Console(file=text, markup=False, width=1000, force_terminal=terminal)
    with shown.view_for(out, quiet=False, as_json=False) as view:
        view.show(progress)
        progress.notice(Notice(1_500, "failover", "main: b goes on; a is gone: its process has ended"))
        view.show(progress)
        view.show(progress)
    line = "1970-01-01T00:00:01.500000Z failover: main: b goes on; a is gone: its process has ended"
    assert text.getvalue().count(line) == 1


def test_programs_are_told_of_a_fail_over(progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    progress.notice(Notice(1_500, "failover", "main: b goes on"))
    with shown.view_for(Console(), quiet=False, as_json=True) as view:
        view.show(progress)
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told == {"type": "failover", "at_ms": 1_500, "reason": "main: b goes on"}


def test_json_lines_are_told_apart_by_type(progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    view = shown.view_for(Console(), quiet=False, as_json=True)
    with view:
        view.show(progress)
        view.finished(Report("orders", 2, 3.25, progress.stages, {"totals-sink-1": 5}))
        view.stopped()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stage = {
        "epoch": 5,
        "epochs": 1,
        "rows": 3000,
        "rows_per_second": 2000.0,
        "lag": {"items": 3, "rows": 7000},
        "state_rows": 100,
        "state_bytes": 2048,
        "merges": 1,
        "aside": {"late": 2},
    }
    assert lines == [
        {"type": "progress", "stage": "totals", **stage},
        {
            "type": "finished",
            "flow": "orders",
            "generation": 2,
            "seconds": 3.25,
            "stages": {"totals": stage},
            "sinks": {"totals-sink-1": 5},
        },
        {"type": "stopped"},
    ]


def test_a_terminal_gets_a_table_and_a_summary(progress: Progress) -> None:
    text = io.StringIO()
    out = Console(file=text, force_terminal=True, width=200, highlight=False)
    with shown.view_for(out, quiet=False, as_json=False) as view:
        view.show(progress)
        view.finished(Report("orders", 2, 3.25, progress.stages, {}))
    said = text.getvalue()
    assert "7,000 rows in 3 items" in said
    assert "totals: 1 epochs, 3,000 rows, 2,000 rows/s, now at epoch 5, 100 state rows, 2.0 KiB" in said
    assert "behind by 7,000 rows in 3 items, 2 late" in said
    assert "Idle after 3.2 s." in said


def test_quiet_says_nothing(progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    with shown.view_for(Console(), quiet=True, as_json=False) as view:
        view.show(progress)
        view.finished(Report("orders", 2, 3.0, progress.stages, {}))
        view.stopped()
    assert capsys.readouterr().out == ""


def test_a_printed_report_of_ten_stages_fits_a_screen() -> None:
    large = StageProgress(99_999, 12_345, 10**9, 7.0, 10**9, 2**40, Lag(3, 10**8))
    large.samples += [EpochSample(n, 1, 1.0, 1.0, 1, 0.0) for n in range(1000)]
    stages = {f"a-stage-with-a-long-name-number-{n}": large for n in range(10)}
    report = Report("orders", 3, 1234.5, stages, {f"sink-{n}": n for n in range(10)})
    for text in (str(report), repr(report)):
        lines = text.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
    assert "10,000,000,000 rows" in lines[0]
    assert "99999" not in text
    assert len(repr(large)) < 400


def test_a_printed_report_has_a_line_per_stage(progress: Progress) -> None:
    text = str(Report("orders", 3, 2.0, progress.stages, {"out": 5}))
    assert text.splitlines() == [
        "flow orders, generation 3: 3,000 rows in 2.0 s",
        "stage   epochs   rows  rows/s    lag  state rows    state",
        "totals       1  3,000   2,000  7,000         100  2.0 KiB",
        "sink out: epoch 5",
    ]
