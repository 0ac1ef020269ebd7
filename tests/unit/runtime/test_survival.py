"""A flow that says it survives its machine, with its ledger in the work directory, is told that it does not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from command import holdfast
from holdfast.ledger.location import LEDGER_VARIABLE, InFile, InPostgres
from holdfast.runtime import supervisor, worker
from holdfast.runtime.progress import Notice
from holdfast.runtime.supervisor import SupervisorOptions, supervise
from holdfast.runtime.survival import NOT_SURVIVED, shortfall
from holdfast.runtime.worker_spec import WorkerSpec

FLOW = """
import holdfast as hf
flow = hf.Flow("orders", {options})
orders = flow.source("orders", hf.rows([{{"k": 1}}]))
orders.group_by("k").agg(n=hf.count()).named("totals").to(hf.discard())
"""
MACHINE = 'survives="machine", replica="copy/"'
SERVER = "postgresql://holdfast@elsewhere/ledgers"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    return tmp_path


def test_it_is_the_ledger_in_the_work_directory_that_is_lost_with_the_machine(tmp_path: Path) -> None:
    inside = InFile(tmp_path)
    elsewhere = InPostgres(tmp_path, SERVER, "holdfast_orders", "an id", known=True)
    assert shortfall("machine", elsewhere) is None
    assert shortfall("power", inside) is None
    told = shortfall("machine", inside)
    assert told is not None
    assert "the ledger is in it, in ledger.db" in told.message
    assert "--ledger postgresql://" in told.hint


@pytest.mark.parametrize(
    ("options", "ledger", "told"),
    [(MACHINE, None, True), (MACHINE, SERVER, False), ('survives="power"', None, False)],
)
def test_explain_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, options: str, ledger: str | None, told: bool
) -> None:
    if ledger:
        monkeypatch.setenv(LEDGER_VARIABLE, ledger)
    flow = home / "orders.py"
    flow.write_text(FLOW.format(options=options))
    found = holdfast("explain", flow, "--json").json
    assert (len(found["notices"]), found["problems"]) == (int(told), [])
    assert ('notice: survives="machine" does not hold' in holdfast("explain", flow).out) is told


@pytest.mark.parametrize(("survives", "told"), [("machine", True), ("power", False)])
def test_a_supervised_run_begins_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, survives: str, told: bool
) -> None:
    begun: list[list[Notice]] = []

    def run(self: Any) -> bool:
        begun.append(self.follower.progress.notices)
        return False

    monkeypatch.setattr(supervisor._Supervisor, "run", run)
    plan = {"flow": "orders", "survives": survives, "groups": [], "stages": {}}
    spec = WorkerSpec(flow="orders.py", work_dir=str(home / "work"), worker="", group="")
    supervise(plan, spec, SupervisorOptions())
    assert [notice.kind for notice in begun[0]] == [NOT_SURVIVED] * told


@pytest.mark.parametrize(("ledger", "told"), [(None, 1), (SERVER, 0)])
def test_a_run_in_the_own_process_warns(
    home: Path, monkeypatch: pytest.MonkeyPatch, ledger: str | None, told: int
) -> None:
    monkeypatch.setattr(worker, "run", lambda *_: None)
    flow = hf.Flow("orders", survives="machine", replica="copy/")
    rows = flow.source("orders", hf.rows([{"k": 1}]))
    rows.group_by("k").agg(n=hf.count()).named("totals").to(hf.discard())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        flow.run(home / "work", ledger=ledger)
    assert len(said) == told
    assert all(one.filename == __file__ and "does not hold" in str(one.message) for one in said)
