"""A pytest fixture that verifies a flow.

    def test_orders_is_exact(holdfast_verify):
        holdfast_verify("flows/orders.py").assert_precise()

The campaign runs in a process of its own: a test process has threads, and perhaps a SparkSession, that must not be
forked. Nothing of Holdfast is imported before the fixture is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Verified:
    """What `holdfast verify` found."""

    report: dict[str, Any]
    said: str

    def assert_precise(self) -> None:
        """Fail unless every fault struck without a trace in any sink."""
        self._check(lambda outcome: outcome["observed"] == "precise")

    def assert_as_predicted(self) -> None:
        """Fail if any sink shows more of a fault than the flow's policies and sinks promise."""
        self._check(lambda outcome: outcome["as_predicted"])

    def _check(self, is_fine: Callable[[dict[str, Any]], bool]) -> None:
        struck = [outcome for outcome in self.report["outcomes"] if outcome["reached"]]
        if not self.report["deterministic"] or not struck or not all(map(is_fine, struck)):
            pytest.fail(f"{self.report['summary']}\n{self.said}", pytrace=False)


@pytest.fixture
def holdfast_verify(tmp_path: Path) -> Callable[..., Verified]:
    """Call it with a flow, `path.py[:name]`, and options of `holdfast verify`: `faults="zombie"`, `epochs=8`."""

    def verify(flow: str | Path, **options: object) -> Verified:
        report = tmp_path / "verify.json"
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        command = [sys.executable, "-P", "-m", "holdfast", "verify", str(flow), f"--json={report}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            pytest.fail(f"holdfast verify {flow} failed:\n{done.stderr}", pytrace=False)
        return Verified(json.loads(report.read_text()), done.stdout)

    return verify
