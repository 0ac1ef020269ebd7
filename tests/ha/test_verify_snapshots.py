"""`holdfast verify` on a flow of four stages that snapshots capture as one, one of them with two inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from captured_flow import table
from holdfast.core.crashpoints import POINTS
from holdfast.verify.scenario import FAULTS, PAIR

ROOT = Path(__file__).resolve().parents[2]

# The epoch commit protocol, step by step, and what it stands between.
PROTOCOL = (
    *(point for point in POINTS if point.startswith("snapshot.")),
    "commit.after",
    "sink.after_record",
)

FLOW = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(ROOT / "tests")!r})
import captured_flow

flow = captured_flow.build(Path("."), slow=SLOW)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for side in "ab":
        (tmp_path / f"in-{side}").mkdir()
        for number in range(12):
            pq.write_table(table(side, number), tmp_path / f"in-{side}" / f"{number:04}.parquet")
    return tmp_path


def verified(home: Path, *options: str, slow: bool = False) -> tuple[list[dict], str]:
    """What came of every run whose point was reached, and what was printed."""
    (home / "flow.py").write_text(FLOW.replace("SLOW", str(slow)))
    command = [sys.executable, "-m", "holdfast", "verify", "flow.py", "--json=report.json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((home / "report.json").read_text())["outcomes"]
    return [run for run in found if run["reached"]], done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("policy", ["snapshot", pytest.param("snapshot_unaligned", marks=pytest.mark.slow)])
def test_a_kill_at_every_step_of_the_commit_protocol_leaves_a_region_precise(home: Path, policy: str) -> None:
    runs, said = verified(home, f"--policies={policy}", "--faults=kill", f"--points={','.join(PROTOCOL)}")
    assert {run["point"] for run in runs} == set(PROTOCOL)
    assert {run["observed"] for run in runs} == {"precise"}, said


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_at_least_once_counts_rows_again_where_the_order_matters_and_the_report_names_it(home: Path) -> None:
    points = "plan.after,commit.after,sink.after_record,snapshot.after_commit,snapshot.before_done"
    runs, said = verified(
        home, "--policies=snapshot_at_least_once", "--epochs=12", f"--points={points}", slow=True
    )
    totals = [v for run in runs for v in run["verdicts"] if v["sink"] == "totals-sink-1"]
    anomalies = [v for v in totals if v["recovery"] == "rollback-divergent"]
    assert anomalies, said
    for verdict in anomalies:
        missing = {row["k"]: int(row["times"]) for row in verdict["missing"]}
        assert all(int(row["times"]) > missing[row["k"]] for row in verdict["extra"]), (
            "told twice, it counts twice"
        )
    assert "stage together does not wait for the markers of its 2 inputs" in said
    assert "rollback-divergent, as the policy allows" in said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_fault_at_every_point_leaves_a_region_precise(home: Path) -> None:
    runs, said = verified(home, "--policies=snapshot,snapshot_unaligned", "--faults=all", "--pairs=4")
    assert {run["observed"] for run in runs} == {"precise"}, said
    assert {run["fault"] for run in runs} == {*FAULTS, PAIR} - {"machine", "target"}
