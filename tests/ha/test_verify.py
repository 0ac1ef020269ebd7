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
from holdfast.verify.scenario import FAULTS, ONLY_SUPERVISED, PAIR
from holdfast.verify.variants import POLICIES
from pages import blocks, shell
from small_flow import FLOW

# Reached only by `holdfast run`: test_supervisor.py and tests/unit/runtime/test_lease.py see to them.
SUPERVISED = {"lease.before_renew", "failover.after_fence"}

# Reached only by policies that rebuild or skip, or when there is more to sweep than a small flow leaves.
OTHERWISE = SUPERVISED | {"recover.before_commit", "sweep.mid"}

# Reached only where something holds no rows: the flow with gaps sees to them.
PASSED = {"pass.before", "pass.after"}

# Reached only where a stream is enriched: the flow with a table sees to it.
ENRICHED = {"table.after_copy"}

# Reached only by stages that snapshots capture: test_verify_snapshots.py sees to them.
CAPTURED = {point for point in POINTS if point.startswith("snapshot.")}

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "VERIFY.md"

# With a stage whose state can be made again from its input, which not every policy needs.
WITH_WINDOWS = f"""{FLOW}
minutes = events.group_by("user").window("ts", tumbling="2 seconds", late="1 second")
minutes.agg(n=hf.count(), top=hf.top_k("amount", 2), all=hf.collect_list("amount"), p=hf.percentile("amount", 0.5)).named(
    "minutes"
).to(hf.parquet("minutes"))
"""

# Joins that hold rows back: until no partner can come, and until one does. Another stage reads what they let go. Before them
# stands each of the everyday steps, and rows are taken in batches.
WITH_JOINS = """
import holdfast as hf

flow = hf.Flow("joins", trigger="200 milliseconds")
every_order, payments = (
    flow.source(
        name,
        hf.generate(
            "id string, user string, ts timestamp",
            rows=1_200, per_epoch=400, keys={"user": 300}, repeat=0.05, seed=seed, disorder="2 seconds",
            spacing="10 milliseconds",
        ),
    )
    for name, seed in (("orders", 3), ("payments", 4))
)
few, many = every_order.where("user < 'user-2'"), every_order.filter("not user < 'user-2'")
orders = (
    few.union(many)
    .with_columns({"price": "length(id)", "unused": "1"})
    .with_column("price", "price * 2")
    .drop("unused")
    .rename(price="cents")
    .select("id", "user", "ts", euros="cents / 100")
)
near = {"on": "user", "time": ("ts", "ts"), "within": ("-500 milliseconds", "1 second"), "late": "1 second"}
for how in ("left", "right", "semi", "anti"):
    orders.join(payments, **near, how=how).named(how).to(hf.parquet(how))
both = orders.join(payments, **near, how="full").named("full")
windows = both.group_by("user").window("ts_right", tumbling="1 second").agg(n=hf.count(), first=hf.min("id"))
windows.named("windows").to(hf.parquet("windows"))
"""

# A file without rows, and one whose rows are all known already, so that the epoch which reads it gives out none.
WITH_GAPS = """
import holdfast as hf

flow = hf.Flow("gaps")
rows = flow.source("rows", hf.files("in", schema="id long, k long, ts timestamp"))
unique = rows.dedup("id", time="ts", within="1 hour").named("unique")
unique.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet("totals"))
"""

# The table of the flow is of another version after the reference run: no run of the campaign may look at it then.
WITH_TABLE = """
import holdfast as hf

flow = hf.Flow("orders", survives="machine", replica="replica")
rows = flow.source("rows", hf.files("in", schema="id long, k long, ts timestamp", max_files_per_epoch=1))
named = rows.enrich(hf.files("names", schema="k long, name string"), on="k", refresh="0 seconds")
named.select("id", "name").named("named").to(hf.parquet("named"))
named.group_by("name").agg(n=hf.count(), newest=hf.max("id")).named("totals").to(hf.parquet("totals"))
"""

# The same, in a flow that changes the table whenever a process has read it.
RENAMED = """
import pathlib
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.sources.table_files import TableFiles

read = TableFiles.read

def changed(self, *args):
    found = read(self, *args)
    names = pathlib.Path(self._directory, "all")
    table = pq.read_table(pa.BufferReader(names.read_bytes()))  # another process may rename one into its place
    other = pa.table({"k": table["k"], "name": [f"{name}x" for name in table["name"].to_pylist()]})
    aside = pathlib.Path(tempfile.mkdtemp(dir=self._directory.parent), "all")
    pq.write_table(other, aside)
    aside.rename(names)
    return found

TableFiles.read = changed
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
    # The flow does not say that it survives its machine, and it has neither a server nor standbys.
    elsewhere = {"machine", "target", *ONLY_SUPERVISED}
    assert {run["fault"] for run in struck} == {*FAULTS, PAIR} - elsewhere, report["outcomes"]
    assert {run["observed"] for run in struck} == {"precise"}
    assert set(POINTS) - {run["point"] for run in struck} <= OTHERWISE | CAPTURED | PASSED | ENRICHED
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


def orders(home: Path, code: str) -> Path:
    """A flow with a table: four files of rows, some of whose keys it has."""
    fresh = [pa.table({"id": [i, i + 1], "k": [i % 3, None], "ts": at(i, i)}) for i in range(0, 8, 2)]
    write_files(home / "in", fresh)
    write_files(home / "names", [pa.table({"k": [0, 1], "name": ["zero", "one"]})])
    (home / "names" / "00000.parquet").rename(home / "names" / "all")
    flow = home / "orders.py"
    flow.write_text(code)
    return flow


@pytest.mark.timeout(900)
def test_an_enriched_flow_is_precise_although_its_table_changes_under_the_campaign(tmp_path: Path) -> None:
    points = "--points=table.after_copy,plan.after,commit.before"
    done = verified(orders(tmp_path, WITH_TABLE + RENAMED), tmp_path, "--faults=kill", points)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(run["point"], run["observed"]) for run in report["outcomes"]] == [
        ("table.after_copy", "precise"),
        ("plan.after", "precise"),
        ("commit.before", "precise"),
    ]
    assert "zerox" in (tmp_path / "names" / "all").read_bytes().decode("latin-1")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_fault_at_every_point_leaves_an_enriched_flow_precise(tmp_path: Path) -> None:
    done = verified(orders(tmp_path, WITH_TABLE), tmp_path, "--faults=all", "--pairs=2")
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert {run["observed"] for run in report["outcomes"] if run["reached"]} == {"precise"}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--faults=kill,worker", "--points=commit.after,task.after_layer"], id="two points"),
        pytest.param(["--faults=all", "--pairs=2"], id="all points", marks=pytest.mark.slow),
    ],
)
def test_joins_that_hold_rows_back_are_precise(tmp_path: Path, options: list[str]) -> None:
    flow = tmp_path / "joins.py"
    flow.write_text(WITH_JOINS)
    done = verified(flow, tmp_path, *options)
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    struck = [run for run in report["outcomes"] if run["reached"]]
    assert len(struck) >= 2
    assert {run["observed"] for run in struck} == {"precise"}
    for stage in ("left", "right", "semi", "anti", "windows"):
        assert any(stage in verdict["sink"] for run in struck for verdict in run["verdicts"]), report


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
    assert set(POINTS) - reached <= SUPERVISED | PASSED | ENRICHED


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
