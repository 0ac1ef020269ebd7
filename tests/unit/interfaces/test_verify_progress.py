"""A campaign whose output is a file is told line by line, without control characters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.interfaces.cli.verify import _bar
from holdfast.verify.outcome import Progress


def test_each_run_is_a_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    def ended(point: str, shown: str, failovers: int | None = None) -> SimpleNamespace:
        title = f"kill at {point}"
        return SimpleNamespace(policy="no_sync", title=title, shown=shown, seconds=1.25, failovers=failovers)

    progress = Progress("running it in peace")
    with _bar() as told:
        told(progress)
        told(progress)
        progress.doing, progress.total = "crashing it", 2
        told(progress)
        progress.outcomes.append(ended("plan.before", "precise"))  # type: ignore[arg-type]
        told(progress)
        progress.outcomes.append(ended("commit.after", "gap", 2))  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "running it in peace",
        "crashing it",
        "1/2 no_sync, kill at plan.before: precise, 1.2 s",
        "2/2 no_sync, kill at commit.after: gap, 2 fail-overs, 1.2 s",
    ]
    assert said.out == ""
