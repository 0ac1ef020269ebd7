"""`holdfast explain` says how a flow is cut, and why, without starting Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command import holdfast

FLOW = """
import holdfast as hf

flow = hf.Flow("clicks", survives="process")
web = flow.source("web", hf.files("web/", schema="id string, user string, at timestamp", idle_after="30 seconds"))
app = flow.source("app", hf.rows([{"id": "a", "user": "u", "n": 1}], per_epoch=5))
both = web.transform(lambda df: df).union(app)
unique = both.dedup("id", time="at", within="90 minutes", max_ahead="1 day").named("unique")
unique.late_to(hf.parquet("late/"))
per_minute = unique.group_by("user").window("at", sliding=("10 minutes", "1 minute"), late="10 seconds")
counts = per_minute.agg(n=hf.count(), top=hf.max("n * 2")).named("counts").to(hf.parquet("out/", single_file=True))
counts.group_by("user").window("window_start", session="1 hour").agg(n=hf.count()).to(hf.discard())
web.transform(lambda df: df.where("id is not null")).named("kept").to(hf.discard())
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "clicks_flow.py"
    path.write_text(FLOW)
    return path


def test_stages_come_in_order_with_inputs_operators_and_readers(flow: Path) -> None:
    found = holdfast("explain", flow, "--json").json
    assert (found["flow"], found["guarantee"], found["survives"]) == ("clicks", "exactly_once", "process")
    assert [stage["name"] for stage in found["stages"]] == ["unique", "counts", "aggregate-3", "kept"]
    unique, counts, sessions, kept = found["stages"]
    assert unique["reads"] == ["source:web", "source:app"]
    assert unique["prefix"] == {"steps": ["<lambda>"], "unions": 1}
    assert unique["operator"] == {
        "kind": "dedup",
        "ids": ["id"],
        "within": "1 hour 30 minutes",
        "time": {"column": "at", "late": "1 hour 30 minutes", "max_ahead": "1 day"},
    }
    assert unique["channels"] == [
        {"name": "channel:unique.out", "port": "out", "read_by": ["stage:counts"]},
        {"name": "channel:unique.late", "port": "late", "read_by": ["sink:unique-late-1"]},
    ]
    assert counts["operator"]["window"] == "sliding, 10 minutes every 1 minute"
    assert counts["operator"]["aggregates"] == {"n": "count(1)", "top": "max(n * 2)"}
    assert counts["channels"][0]["read_by"] == ["stage:aggregate-3", "sink:counts-sink-1"]
    assert sessions["operator"]["window"] == "session, gaps of 1 hour"
    assert (kept["operator"], kept["cut_because"]) == (None, "a sink reads it")
    assert unique["cut_because"] == "it keeps state"


def test_sources_sinks_and_recovery_say_what_they_promise(flow: Path) -> None:
    found = holdfast("explain", flow, "--json").json
    web, app = found["sources"]
    assert (web["kind"], web["path"], web["idle_after"]) == ("files", "web/", "30 seconds")
    assert web["schema"] == "id string, user string, at timestamp"
    assert web["read_by"] == ["stage:unique", "stage:kept"]
    assert (app["kind"], app["rows"], app["rows_per_epoch"]) == ("rows", 1, 5)
    late, out, *discarded = found["sinks"]
    assert (late["name"], late["reads"], late["guarantee"]) == (
        "unique-late-1",
        "channel:unique.late",
        "exactly_once",
    )
    assert "is a file that appears" in out["because"]
    assert [sink["guarantee"] for sink in discarded] == [None, None]
    assert {stage["recovery"]["policy"] for stage in found["stages"]} == {"no_sync"}
    assert found["stages"][0]["recovery"]["tiers"] == ["memory"]


def test_every_stage_says_how_it_recovers_and_where_it_runs(flow: Path) -> None:
    flow.write_text(
        f"""{FLOW}
unique.recover(hf.active_standby(members=3))
counts.recover(hf.upstream_backup())
flow.place("counting", counts, "aggregate-3")
"""
    )
    found = holdfast("explain", flow, "--json").json
    assert found["replica"] is None
    assert found["groups"] == [
        {"name": "main", "stages": ["unique", "kept"]},
        {"name": "counting", "stages": ["counts", "aggregate-3"]},
    ]
    assert [stage["group"] for stage in found["stages"]] == ["main", "counting", "counting", "main"]
    unique, counts, *_ = (stage["recovery"] for stage in found["stages"])
    assert counts == {
        "policy": "upstream_backup",
        "class": "precise",
        "files": "worker",
        "persist": "never",
        "tiers": ["memory"],
        "every": None,
        "standby": "none",
        "members": 1,
        "lockstep": None,
        "resume": "rebuild",
        "snapshots": None,
        "persisted": "the input, until the state no longer depends on it",
        "after_failure": "replay the retained input onto an empty state; what was published is not published again",
    }
    assert (unique["standby"], unique["members"], unique["lockstep"]) == ("hot", 3, False)
    said = holdfast("explain", flow).out
    assert "  group: counting\n    stages: counts, aggregate-3\n" in said
    assert "  recovery: active_standby\n    class: precise\n" in said
    assert "    lockstep: no\n" in said


def test_a_stage_that_is_captured_with_others_says_how(flow: Path) -> None:
    flow.write_text(f'{FLOW}\nunique.recover(hf.snapshot("1 minute", "unaligned", tolerate=0))\n')
    found = holdfast("explain", flow, "--json").json["stages"][0]["recovery"]
    assert (found["policy"], found["class"], found["resume"]) == ("snapshot", "precise", "return")
    assert found["tiers"] == ["memory"], "as far as survives asks for"
    assert found["snapshots"] == {
        "mode": "unaligned",
        "every": "1 minute",
        "min_pause": "0 seconds",
        "max_concurrent": 1,
        "timeout": "10 minutes",
        "tolerate": 0,
    }
    said = holdfast("explain", flow).out
    assert "    snapshots: unaligned\n      every: 1 minute\n      min pause: 0 seconds\n" in said
    assert "    persisted: at each snapshot, the layers and segments since the one before\n" in said


def test_the_text_is_a_tree_that_leaves_out_what_is_not_set(flow: Path) -> None:
    said = holdfast("explain", flow).out
    stage = said[said.index("stage unique") : said.index("stage counts")]
    assert stage.splitlines()[:12] == [
        "stage unique",
        "  cut because: it keeps state",
        "  reads: source:web, source:app",
        "  prefix",
        "    steps: <lambda>",
        "    unions: 1",
        "  operator: dedup",
        "    ids: id",
        "    within: 1 hour 30 minutes",
        "    time: at",
        "      late: 1 hour 30 minutes",
        "      max ahead: 1 day",
    ]
    assert "  prefix: none" in said
    assert "None" not in said


def test_what_a_flow_file_prints_does_not_mix_with_the_answer(flow: Path) -> None:
    flow.write_text(f"{FLOW}\nprint('loading')\n")
    said = holdfast("explain", flow, "--json")
    assert said.json["flow"] == "clicks"
    assert said.err == "loading\n"


def test_no_spark_is_started_for_it(flow: Path) -> None:
    code = (
        "import sys; from command import holdfast; said = holdfast('explain', sys.argv[1]);"
        " from pyspark import SparkContext; print(said.status, SparkContext._gateway is None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, flow],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[2]), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", "True"]


def test_a_flow_that_cannot_be_planned_is_an_error_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "sinkless_flow.py"
    path.write_text('import holdfast as hf\nflow = hf.Flow("f")\nflow.source("s", hf.rows([{"k": 1}]))\n')
    said = holdfast("explain", path)
    assert (said.status, said.out) == (1, "")
    assert said.err.splitlines() == [
        "PlanError: flow 'f' has no sink, so nothing would leave it",
        "  where: plan",
        "  heals: not by itself",
        "  hint:  End a stream with .to(hf.parquet('out/')).",
    ]
