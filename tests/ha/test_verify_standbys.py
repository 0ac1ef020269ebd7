"""`holdfast verify --standbys`: deaths of workers, standbys and supervisors, in a flow that is run under a supervisor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.verify.variants import WITH_STANDBYS
from pages import blocks, shell
from small_flow import FLOW

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "VERIFY.md"

# Where workers and supervisor meet, and an epoch under way.
POINTS = "lease.before_renew,failover.after_fence,recover.before,commit.before,plan.after"


def verified(home: Path, flow: Path, *options: str) -> tuple[list[dict], dict, str]:
    """Every run whose point was reached, the whole report, and what was printed."""
    report = home / "report.json"
    command = [sys.executable, "-m", "holdfast", "verify", str(flow), f"--json={report}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    return [run for run in found["outcomes"] if run["reached"]], found, done.stdout + done.stderr


def struck(runs: list[dict]) -> set[tuple[str, str]]:
    return {(run["fault"], run["point"]) for run in runs}


@pytest.mark.timeout(900)
def test_whoever_dies_beside_a_standby_changes_no_row(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    faults = "kill,zombie,standby,supervisor"
    runs, report, said = verified(
        tmp_path,
        Path("flow.py"),
        "--standbys=1",
        "--policies=no_sync",
        f"--faults={faults}",
        f"--points={POINTS}",
    )
    assert {run["observed"] for run in runs} == {"precise"}, said
    assert struck(runs) == {
        *(("kill", point) for point in POINTS.split(",")),
        *(("zombie", point) for point in ("plan.after", "commit.before")),
        ("standby", "lease.before_renew"),
        ("supervisor", "plan.after"),
    }, said
    replaced = [run for run in runs if run["fault"] != "standby"]
    assert all(run["failovers"] >= 1 for run in replaced), "whoever leads and dies is replaced by a standby"
    assert report["table"][0]["failovers"] == sum(run["failovers"] for run in runs)
    assert "fail-over" in said


@pytest.mark.timeout(900)
def test_hot_standbys_go_on_whichever_of_them_dies(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    options = (
        "--standbys=2",
        "--policies=active_standby_lockstep",
        "--faults=kill,both",
        "--points=commit.before",
    )
    runs, _, said = verified(tmp_path, Path("flow.py"), *options)
    assert struck(runs) == {("kill", "commit.before"), ("both", "commit.before")}, said
    assert {run["observed"] for run in runs} == {"precise"}, said
    assert all(run["failovers"] >= 1 for run in runs if run["fault"] == "both"), (
        "the one that leads was among them"
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_command_of_the_page_finds_no_violation_under_any_policy(tmp_path: Path) -> None:
    """That of docs/VERIFY.md, as written, but for the crash points: one instead of all."""
    (tmp_path / "orders.py").write_text(FLOW)
    said = shell(tmp_path, f"{blocks(PAGE, 'sh')[1].strip()} --points commit.before")
    assert "no violation" in said
    assert all(policy in said for policy in WITH_STANDBYS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_fault_under_every_policy_beside_a_standby(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    faults = "kill,worker,zombie,standby,supervisor,both"
    runs, _, said = verified(
        tmp_path, Path("flow.py"), "--standbys=1", "--policies=all", f"--faults={faults}", "--pairs=3"
    )
    assert all(run["as_predicted"] for run in runs), said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_loop_over_several_workers_with_standbys_comes_to_rest_at_the_same_rows(tmp_path: Path) -> None:
    options = "--standbys=1", "--workers=2", "--faults=kill,standby,supervisor"
    runs, _, said = verified(tmp_path, ROOT / "examples" / "score_propagation.py", *options)
    assert {run["observed"] for run in runs} == {"precise"}, said
    assert ("kill", "failover.after_fence") in struck(runs)
