"""Every operator and sink, in every scenario, after every action: what they hold in the end is what a run in peace gave.

A cell is one run of `checks_flow.py`: in its scenario it reads half of the files, then the action befalls it, and it goes on
with the rest until everything has come out. `make test` runs a cell of every scenario and of every action, over few files;
`make test-all` runs all cells, these too over more.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import checks_flow
from batch import read_sink
from holdfast.core.errors import LedgerError
from holdfast.flow import endpoints, nodes
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.ledger.location import PASSWORD_VARIABLE
from holdfast.ledger.roster import roster
from holdfast.ledger.status import status
from holdfast.sinks.lake import lake_rows
from holdfast.spark.session import make_session
from holdfast.verify.classes import Recovery, Seen, judge

FLOW = Path(checks_flow.__file__)
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
FILES, FEW_FILES = 4, 2  # before the action, and as many behind it
SECONDS_MAX = 240


@dataclass(frozen=True)
class Scenario:
    """How the flow runs."""

    policy: str = "alone"
    then: str | None = None  # the policy behind the action, where it is another
    supervised: bool = True
    ledger_in_postgres: bool = False


SCENARIOS = {
    "alone": Scenario(supervised=False),
    "warm standby": Scenario("warm"),
    "other policy": Scenario("standby", then="strong"),
    "ledger in PostgreSQL": Scenario(ledger_in_postgres=True),
    "snapshots": Scenario("snapshot"),
}

# What befalls it: its worker is killed; it is stopped as a user stops it; it comes to its end, and is started again.
# Going back, the fourth, is what a kill is under snapshots: the region returns to the last complete one.
ACTIONS = ("kill", "stop", "restart")

# The cells of `make test`.
IN_CI = {
    ("alone", "stop"),
    ("warm standby", "kill"),
    ("other policy", "restart"),
    ("ledger in PostgreSQL", "kill"),
    ("snapshots", "kill"),
}

# Operators and sinks that are not in the flow, and where they are seen to.
ELSEWHERE = {
    "Substream": "refused in one flow with snapshots: tests/ha/test_substreams.py",
    "KafkaSink": "needs a server: tests/edges/test_kafka_restart.py, tests/edges/test_verify_targets.py",
    "OwnSink": "a user's own: tests/spark/test_own_edges.py, tests/edges/test_two_phase_postgres.py",
    "upgraded format": "a ledger of an older format is refused: tests/unit/ledger/test_holder.py; files of an older one are"
    " read: tests/unit/state/test_bit_flips.py",
}

CELLS = [
    pytest.param(
        *cell,
        files,
        marks=() if files == FEW_FILES else pytest.mark.slow,
        id=f"{'-'.join(cell)}{'-few' if files == FEW_FILES else ''}",
    )
    for cell in product(SCENARIOS, ACTIONS)
    for files in ([FEW_FILES] if cell in IN_CI else []) + [FILES]
]


@dataclass
class Run:
    """A home, and the process that runs the flow there."""

    home: Path
    scenario: Scenario
    ledger: str | None
    at_once: int  # so many files come in at a time
    process: subprocess.Popen[bytes] | None = None
    files: int = 0
    ended: list[int] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.home / "work"

    def feed(self) -> None:
        checks_flow.feed(self.home, self.files, self.at_once)
        self.files += self.at_once

    def start(self, policy: str, *until: str) -> None:
        """Run on, or until all is read (`until_idle`) or all has come out (`drain`)."""
        if self.scenario.supervised:
            ends = [f"--{word.replace('_', '-')}" for word in until]
            ledger = ["--ledger", self.ledger] if self.ledger else []
            options = ["--work-dir", str(self.work), "--master", "local[2]", "--tasks", "2", "--quiet"]
            command = [HOLDFAST, "run", str(FLOW), *options, *ledger, *ends]
        else:
            command = [sys.executable, str(FLOW), *until]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FLOW.parent), os.environ.get("PYTHONPATH", "")]),
            "CHECKS_HOME": str(self.home),
            "CHECKS_POLICY": policy,
        }
        with (self.home / "said").open("ab") as said:
            self.process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, f"not in time: {what}; {self.said()}"
            time.sleep(0.05)

    def end(self, status: int = 0) -> None:
        """Wait until it ends by itself."""
        assert self.process is not None
        assert self.process.wait(SECONDS_MAX) == status, self.said()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM if self.scenario.supervised else signal.SIGINT)
        self.process.wait(SECONDS_MAX)

    def heads(self) -> dict[str, int]:
        try:
            return {name: stage["epoch"] for name, stage in status(self.work)["stages"].items()}
        except (LedgerError, KeyError):
            return {}

    def is_under_way(self) -> bool:
        """Whether the stages that read the files have done two epochs."""
        heads = self.heads()
        return (
            bool(heads)
            and min(heads.get("totals", -1), heads.get("inner_join", -1), heads.get("unique", -1)) >= 1
        )

    def workers(self) -> list[dict]:
        try:
            found = roster(self.work)["groups"].values()
        except LedgerError:
            return []
        return [worker for group in found for worker in group["workers"] if worker["lives"]]

    def primary(self) -> dict | None:
        return next((worker for worker in self.workers() if worker["part"] == "primary"), None)

    def events(self) -> set[str]:
        """All kinds of events that there were, in a ledger in the work directory; `status` shows the newest only."""
        with closing(sqlite3.connect(self.work / "ledger.db")) as ledger:
            return {kind for (kind,) in ledger.execute("select distinct kind from events")}

    def said(self) -> str:
        return (self.home / "said").read_text(errors="replace")[-4_000:]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for worker in self.workers():
            os.kill(int(worker["process"]["pid"]), signal.SIGKILL)


def befall(run: Run, action: str) -> None:
    """The action; afterwards nothing runs, and more has come in."""
    policy = run.scenario.policy
    if action == "restart":
        run.start(policy, "until_idle")
        run.end()
        run.feed()
        return
    run.start(policy)
    run.wait("its first epochs", run.is_under_way)
    if action == "kill":
        kill(run)
    run.feed()
    if run.process is not None and run.process.poll() is None:
        run.stop()


def kill(run: Run) -> None:
    """kill -9 of what does the work; a supervisor sees to a successor, which commits."""
    assert run.process is not None
    if not run.scenario.supervised:
        run.process.kill()
        run.process.wait()
        return
    if run.scenario.policy == "warm":
        run.wait("a standby", lambda: any(worker["rehearsals"] for worker in run.workers()))
    first = run.primary()
    assert first is not None
    os.kill(int(first["process"]["pid"]), signal.SIGKILL)
    run.wait("a successor", lambda: (run.primary() or first)["worker"] != first["worker"])
    run.feed()
    before = run.heads()["totals"]
    run.wait("an epoch of the successor", lambda: run.heads().get("totals", -1) > before)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("checks", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def in_peace(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, pa.Table]]:
    """What every sink holds after a run without failures over so many files."""
    known: dict[int, dict[str, pa.Table]] = {}

    def run(files: int) -> dict[str, pa.Table]:
        if files not in known:
            home = tmp_path_factory.mktemp("peace")
            checks_flow.feed(home, 0, files)
            checks_flow.build(home, "alone").run(home / "work", drain=True, spark=spark, tasks=2)
            known[files] = seen(home)
        return known[files]

    return run


def seen(home: Path) -> dict[str, pa.Table]:
    """By sink, the rows that a reader finds, without the number of their epoch."""
    found: dict[str, pa.Table] = {}
    for sink in planned(home).sinks:
        match sink.description:
            case endpoints.ParquetSink(path=path, single_file=True):
                rows = pa.concat_tables(
                    [pq.read_table(file) for file in sorted(Path(path).glob("epoch-*.parquet"))]
                )
            case endpoints.ParquetSink(path=path):
                rows = read_sink(Path(path)).drop_columns(["epoch"])
            case endpoints.TableSink(table=name):
                rows = table(home / "out.db", name)
            case endpoints.ForeachSink():
                sent = [
                    json.loads(file.read_text()) for file in (home / "sent").iterdir() if file.name[0] != "."
                ]
                rows = pa.table({"id": [number for ids in sent for number in ids]})
            case endpoints.DeltaSink() | endpoints.IcebergSink() as description:
                rows = lake_rows(description)
            case endpoints.DiscardSink():
                continue
        found[sink.name] = rows
    return found


def table(database: Path, name: str) -> pa.Table:
    with closing(sqlite3.connect(database)) as connection:
        cursor = connection.execute(f"select * from {name}")
        names = [column for column, *_ in cursor.description]
        rows = cursor.fetchall()
    return pa.table({column: [str(row[i]) for row in rows] for i, column in enumerate(names)})


def planned(home: Path) -> FlowPlan:
    return plan(checks_flow.build(home, "alone"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scenario", "action", "files"), CELLS)
def test_a_flow_with_everything_in_it_ends_as_in_peace(
    scenario: str,
    action: str,
    files: int,
    tmp_path: Path,
    in_peace: Callable[[int], dict[str, pa.Table]],
    request: pytest.FixtureRequest,
) -> None:
    played = SCENARIOS[scenario]
    ledger = None
    if played.ledger_in_postgres:
        ledger = request.getfixturevalue("postgres")
        request.getfixturevalue("monkeypatch").setenv(PASSWORD_VARIABLE, str(urlsplit(ledger).password))
    run = Run(tmp_path, played, ledger, files)
    try:
        run.feed()
        befall(run, action)
        run.start(played.then or played.policy, "drain")
        run.end()
        if action == "kill" and played.policy == "snapshot":
            assert "returned" in run.events(), "a lost worker of a region takes all of it back"
        wanted, found = in_peace(run.files), seen(tmp_path)
    finally:
        run.close()
    assert found.keys() == wanted.keys()
    verdicts = [judge(Seen(name, wanted[name]), Seen(name, found[name])) for name in wanted]
    assert [verdict.to_json() for verdict in verdicts if verdict.recovery is not Recovery.PRECISE] == []
    assert all(rows.num_rows for rows in wanted.values())


def test_every_operator_sink_scenario_and_action_is_there_or_has_a_reason(tmp_path: Path) -> None:
    found = planned(tmp_path)
    operators = {type(stage.operator).__name__ for stage in found.stages if stage.operator is not None}
    assert operators | {"Substream"} == {kind.__name__ for kind in nodes.Stateful.__args__}
    sinks = {type(sink.description).__name__ for sink in found.sinks}
    assert sinks | {"KafkaSink", "OwnSink"} == {kind.__name__ for kind in endpoints.SinkDescription.__args__}
    assert {"Substream", "KafkaSink", "OwnSink"} <= ELSEWHERE.keys()
    assert {scenario for scenario, _ in IN_CI} == SCENARIOS.keys()
    assert {action for _, action in IN_CI} == {*ACTIONS}
    for reason in ELSEWHERE.values():
        files = [word.strip(",;") for word in reason.split() if word.startswith("tests/")]
        assert files
        assert [file for file in files if not (FLOW.parents[1] / file).is_file()] == []
