"""`holdfast verify` on flows that are right and on one that is wrong, as a user runs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from batch import write_files
from event_time import at
from holdfast.core.crashpoints import POINTS
from holdfast.verify.plugin import Verified
from holdfast.verify.scenario import FAULTS, PAIR
from holdfast.verify.variants import POLICIES
from pages import blocks, shell

# Reached only by `holdfast run`: test_supervisor.py and tests/unit/runtime/test_lease.py see to them.
SUPERVISED = {"lease.before_renew", "failover.after_fence"}

# Reached only by policies that rebuild or skip, or when there is more to sweep than a small flow leaves.
OTHERWISE = SUPERVISED | {"recover.before_commit", "sweep.mid"}

# Reached only where something holds no rows: the flow with gaps sees to them.
PASSED = {"pass.before", "pass.after"}

# Reached only by stages that snapshots capture: test_verify_snapshots.py sees to them.
CAPTURED = {point for point in POINTS if point.startswith("snapshot.")}

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "VERIFY.md"

FLOW = """
import holdfast as hf

flow = hf.Flow("small")
events = flow.source(
    "events",
    hf.generate(
        "id string, user string, amount double, ts timestamp",
        rows=3_000, per_epoch=500, keys={"user": 40}, repeat=0.05, seed=3, disorder="2 seconds",
    ),
)
unique = events.dedup("id", time="ts", within="10 seconds").named("unique")
totals = unique.group_by("user").agg(n=hf.count(), total=hf.sum("amount")).named("totals")
totals.to(hf.parquet("totals")).to(hf.table("sqlite:///totals.db", "totals", key="user"))
"""

# With a stage whose state can be made again from its input, which not every policy needs.
WITH_WINDOWS = f"""{FLOW}
minutes = events.group_by("user").window("ts", tumbling="2 seconds", late="1 second")
minutes.agg(n=hf.count(), top=hf.top_k("amount", 2), all=hf.collect_list("amount"), p=hf.percentile("amount", 0.5)).named(
    "minutes"
).to(hf.parquet("minutes"))
"""

# A file without rows, and one whose rows are all known already, so that the epoch which reads it gives out none.
WITH_GAPS = """
import holdfast as hf

flow = hf.Flow("gaps")
rows = flow.source("rows", hf.files("in", schema="id long, k long, ts timestamp"))
unique = rows.dedup("id", time="ts", within="1 hour").named("unique")
unique.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet("totals"))
"""

# Holdfast as it must not be: a run that follows recorded plans leaves what holds no rows unread.
PLANTED = """
from holdfast.runtime import planning

planning._passed_over_to = lambda *args: None
"""

# A sink of a user's that is subtly wrong: it writes before it looks whether it has seen the token.
WRONG = """
import json
from pathlib import Path

import holdfast as hf

OUT, SEEN = Path("out.jsonl"), Path("seen")


def send(rows, epoch, token):
    with OUT.open("a") as out:
        out.writelines(json.dumps(row) + "\\n" for row in rows.to_pylist())
    if token not in (SEEN.read_text().split() if SEEN.exists() else []):
        with SEEN.open("a") as seen:
            seen.write(token + "\\n")


def read():
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


flow = hf.Flow("wrong")
events = flow.source("events", hf.generate("id string, n int", rows=3_000, per_epoch=500, seed=3))
kept = events.transform(lambda df: df.where("n % 3 = 0")).named("kept")
kept.to(hf.foreach(send, idempotent=True, read=read))
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(FLOW)
    return path


@pytest.mark.timeout(1500)
def test_every_fault_at_every_point_and_pairs_of_them_leave_a_flow_precise(
    flow: Path, tmp_path: Path
) -> None:
    done = verified(flow, tmp_path, "--faults=all", "--pairs=2")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    struck = [run for run in report["outcomes"] if run["reached"]]
    # The flow does not say that it survives its machine, and it has no server.
    assert {run["fault"] for run in struck} == {*FAULTS, PAIR} - {"machine", "target"}, report["outcomes"]
    assert {run["observed"] for run in struck} == {"precise"}
    assert set(POINTS) - {run["point"] for run in struck} <= OTHERWISE | CAPTURED | PASSED
    cases = ET.parse(tmp_path / "report.xml").getroot().iter("testcase")
    assert len(list(cases)) == len(report["outcomes"])
    assert "no violation" in (tmp_path / "report.html").read_text()


@pytest.mark.timeout(900)
def test_a_kill_while_what_holds_no_rows_is_passed_over_costs_nothing_and_leaving_it_unread_is_found(
    tmp_path: Path,
) -> None:
    fresh = [pa.table({"id": [i, i + 1], "k": [i, None], "ts": at(i, i)}) for i in (0, 2)]
    write_files(tmp_path / "in", [fresh[0], fresh[1].slice(0, 0), fresh[1], fresh[0]])
    flow = tmp_path / "gaps.py"
    flow.write_text(WITH_GAPS)
    done = verified(flow, tmp_path, "--faults=kill", "--points=pass.before,pass.after")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(run["point"], run["observed"]) for run in report["outcomes"]] == [
        ("pass.before", "precise"),
        ("pass.after", "precise"),
    ]
    flow.write_text(WITH_GAPS + PLANTED)
    done = verified(flow, tmp_path, "--faults=kill", "--points=commit.after")
    (run,) = json.loads((tmp_path / "report.json").read_text())["outcomes"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "stage totals has not read epochs" in str(run["error"])


@pytest.mark.timeout(900)
def test_a_gap_is_predicted_and_seen(flow: Path, tmp_path: Path) -> None:
    done = verified(flow, tmp_path, "--policies=gap", "--points=commit.before,commit.after")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(run["predicted"], run["observed"]) for run in report["outcomes"]] == [("gap", "gap")] * 2


@pytest.mark.timeout(900)
def test_a_sink_that_writes_before_it_looks_is_caught_with_a_command_that_shows_it_again(
    tmp_path: Path, holdfast_verify: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the test that the page shows, at one point of an epoch."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "orders.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Callable[..., None]] = {}
    exec(blocks(PAGE, "python")[0], shown)
    found: list[Verified] = []

    def verify(flow: str, **options: str) -> Verified:
        found.append(holdfast_verify(flow, points="sink.after_publish", **options))
        return found[-1]

    with pytest.raises(pytest.fail.Exception, match="rollback-repeating"):
        shown["test_orders_is_exact"](verify)
    (run,) = [run for run in found[0].report["outcomes"] if run["reached"] and run["fault"] == "kill"]
    assert run["command"].startswith("holdfast verify flows/orders.py --policies as-written")
    (verdict,) = run["verdicts"]
    assert verdict["extra"]
    again = subprocess.run(
        [sys.executable, "-m", *shlex.split(run["command"])], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert "rollback-repeating" in again.stdout


@pytest.mark.timeout(900)
def test_a_flow_that_is_to_survive_its_machine_goes_on_from_the_replica(flow: Path, tmp_path: Path) -> None:
    named = 'hf.Flow("small", survives="machine", replica="replica")'
    flow.write_text(FLOW.replace('hf.Flow("small")', named))
    done = verified(flow, tmp_path, "--faults=machine,power")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(run["fault"], run["reached"], run["observed"]) for run in report["outcomes"]} == {
        ("machine", True, "precise"),
        ("power", True, "precise"),
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("job", "observed", "status"), [("append", "rollback-repeating", 1), ("of the page", "precise", 0)]
)
def test_a_plain_spark_job_is_told_what_a_crash_leaves_in_its_sink(
    tmp_path: Path, job: str, observed: str, status: int
) -> None:
    source = tmp_path / "source"
    rows = pa.table({"k": [1, 2, None, 4], "v": [5, 6, 7, None]})
    write_files(source, [rows, rows, rows.slice(1)])
    page, own = blocks(PAGE, "python")[1], ROOT / "tests" / "plain_jobs" / "append.py"
    (tmp_path / "job.py").write_text(page if job == "of the page" else own.read_text())
    options = ["--spark", f"--source={source}", "--points=sink.left"]
    done = verified(tmp_path / "job.py", tmp_path, *options)
    (run,) = json.loads((tmp_path / "report.json").read_text())["outcomes"]
    assert (run["reached"], run["observed"]) == (True, observed), done.stdout + done.stderr
    assert done.returncode == status


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_fault_at_every_point_under_every_policy_is_as_predicted(flow: Path, tmp_path: Path) -> None:
    flow.write_text(WITH_WINDOWS)
    done = verified(flow, tmp_path, "--policies=all", "--faults=all", "--pairs=3")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    reached = {run["point"] for run in report["outcomes"] if run["reached"]}
    assert set(POINTS) - reached <= SUPERVISED | PASSED


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_of_the_page_reports_of_every_policy(flow: Path, tmp_path: Path) -> None:
    """As written, but for the crash points: one instead of all."""
    flow.rename(tmp_path / "orders.py")
    said = shell(tmp_path, f"{blocks(PAGE, 'sh')[0].strip()} --points commit.after")
    report = (tmp_path / "report.html").read_text()
    assert "no violation" in said
    for policy in POLICIES:
        assert policy in said
        assert policy in report


def verified(flow: Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command with all its reports."""
    reports = [
        f"--{kind}={home / 'report'}.{end}"
        for kind, end in (("json", "json"), ("html", "html"), ("junit", "xml"))
    ]
    command = [sys.executable, "-m", "holdfast", "verify", str(flow), *reports, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
