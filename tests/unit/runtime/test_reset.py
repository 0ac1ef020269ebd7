"""Starting over: all of a flow goes, nothing else does, and a reset that is cut off is finished by the next one."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from command import holdfast
from holdfast.core.errors import LedgerError, SinkError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
from holdfast.runtime import reset as resetting
from holdfast.runtime.reset import Reset
from holdfast.sinks import clearing
from holdfast.sinks.contract import SinkRecord
from holdfast.sinks.parquet import ParquetSink
from holdfast.sinks.table import TableSink

ROWS = pa.table({"k": [1, 2]})


# What is not the flow's, and the database, whose table has no rows.
OTHERS = {"work/mine.txt", "out/mine.txt", "out.db", "copies/data/rows-1/of-another-flow/out.parquet"}


class Killed(BaseException):
    """The process ends here."""


def planned(home: Path, name: str = "f") -> FlowPlan:
    flow = hf.Flow(name, survives="machine", replica=str(home / "copies"))
    rows = flow.source("in", hf.rows(ROWS))
    rows.to(hf.parquet(str(home / "out"))).to(hf.parquet(str(home / "single"), single_file=True))
    rows.to(hf.table(f"sqlite:///{home / 'out.db'}", "t", key="k")).to(hf.discard())
    return plan(flow)


def lived(home: Path) -> FlowPlan:
    """A flow that has published two epochs to each target, and left state in its work directory."""
    made, work = planned(home), home / "work"
    (work / "data" / "rows-1" / "a").mkdir(parents=True)
    pq.write_table(ROWS, work / "data" / "rows-1" / "a" / "out.parquet")
    for copy in ("data/rows-1/a/out.parquet", "data/rows-1/of-another-flow/out.parquet"):
        (home / "copies" / copy).parent.mkdir(parents=True)
        (home / "copies" / copy).touch()
    (work / "logs").mkdir()
    (work / "mine.txt").write_text("not Holdfast's")
    (work / "ledger.db").touch()
    ledger = Ledger(work)
    holder.release(ledger, holder.take(ledger, "f"))
    ledger.close()
    sinks = (
        ParquetSink(home / "out"), ParquetSink(home / "single", True),
        TableSink(f"sqlite:///{home / 'out.db'}", "t", ["k"], ROWS.schema),
    )  # fmt: skip
    for sink in sinks:
        sink.open("f", 0, 5)
        for epoch in (0, 1):
            sink.publish(SinkRecord("f", 0, epoch, 0, 5), [work / "data" / "rows-1" / "a" / "out.parquet"])
        sink.close()
    (home / "out" / "mine.txt").write_text("not Holdfast's")
    return made


def names(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def rows_of(home: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(home / "out.db")) as db:
        return tuple(
            db.execute(f"select count(*) from {name}").fetchone()[0] for name in ("t", "holdfast_sinks")
        )  # type: ignore[return-value]


def test_everything_of_the_flow_goes_and_nothing_else(tmp_path: Path) -> None:
    made = lived(tmp_path)
    before = names(tmp_path)
    found = Reset(made, tmp_path / "work", targets=True).find()
    assert names(tmp_path) == before
    assert [(left.rows, left.epoch) for _, left in found.targets] == [(None, 1), (None, 1), (2, 1)]
    assert all(left.files and left.bytes for _, left in found.targets[:2])
    assert Reset(made, tmp_path / "work", targets=True).carry_out() == found
    assert names(tmp_path) == OTHERS
    assert rows_of(tmp_path) == (0, 0)
    again = Reset(made, tmp_path / "work", targets=True).carry_out()
    assert (again.directories, again.ledger, again.targets) == ((), None, ())


def test_without_targets_only_the_work_directory_goes(tmp_path: Path) -> None:
    made = lived(tmp_path)
    Reset(made, tmp_path / "work", targets=False).carry_out()
    assert not (tmp_path / "work" / "ledger.db").exists()
    assert rows_of(tmp_path) == (2, 1)
    assert ParquetSink(tmp_path / "out").last_of("f") == 1


def test_a_reset_that_is_cut_off_anywhere_lets_no_run_begin_and_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in itertools.count(1):
        home = tmp_path / str(last)
        home.mkdir()
        made = lived(home)
        with monkeypatch.context() as patch:
            left = [last]

            def dying(function, left=left):  # type: ignore[no-untyped-def]
                def call(*args, **kwargs):  # type: ignore[no-untyped-def]
                    function(*args, **kwargs)
                    left[0] -= 1
                    if not left[0]:
                        raise Killed

                return call

            patch.setattr(resetting.removal, "remove", dying(resetting.removal.remove))
            patch.setattr(clearing, "remove", dying(clearing.remove))
            for name in ("write_atomic", "rename_without_replacing"):
                patch.setattr(clearing.atomic, name, dying(getattr(clearing.atomic, name)))
            patch.setattr(Ledger, "drop", dying(Ledger.drop))
            try:
                Reset(made, home / "work", targets=True).carry_out()
                break
            except Killed:
                pass
        if (home / "work" / "reset.json").exists():
            with pytest.raises(LedgerError, match="begun and has not ended"):
                Ledger(home / "work")
        Reset(made, home / "work", targets=False).carry_out()
        if not (home / "work" / "ledger.db").exists() and last > 1:
            Reset(made, home / "work", targets=True).carry_out()
        assert names(home) == OTHERS, last
        assert rows_of(home) == (0, 0)
    assert last > 10


def test_a_running_flow_another_flow_and_a_target_that_cannot_be_emptied_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lived(tmp_path)
    before = names(tmp_path)
    with pytest.raises(SinkError, match="the target belongs to the flow 'f', not to 'g'"):
        Reset(planned(tmp_path, "g"), tmp_path / "work", targets=True).carry_out()
    with pytest.raises(LedgerError, match="belongs to flow 'f', not to 'g'"):
        Reset(planned(tmp_path, "g"), tmp_path / "work", targets=False).carry_out()
    flow = hf.Flow("f")
    flow.source("in", hf.rows(ROWS)).to(hf.own_sink(lambda schema: None))
    with pytest.raises(SinkError, match=r"sink 'rows-1-sink-1' publishes to a target that cannot be emptied"):
        Reset(plan(flow), tmp_path / "work", targets=True)
    monkeypatch.setattr(holder, "running", lambda tx: holder.Process("elsewhere", 17, "1"))
    with pytest.raises(LedgerError, match="process 17 on elsewhere is running this flow"):
        Reset(made, tmp_path / "work", targets=True).carry_out()
    assert names(tmp_path) == before


def test_the_command_shows_what_would_go_and_removes_it(tmp_path: Path) -> None:
    lived(tmp_path)
    flow = tmp_path / "flow.py"
    flow.write_text(
        "import holdfast as hf\nflow = hf.Flow('f')\nrows = flow.source('in', hf.rows([{'k': 1}]))\n"
        f"rows.to(hf.parquet({str(tmp_path / 'out')!r}))\n"
    )
    before = names(tmp_path)
    words = ("reset", flow, "--work-dir", tmp_path / "work", "--targets")
    shown = holdfast(*words, "--dry-run")
    assert shown.status == 0, shown.err
    assert f"Would remove from {tmp_path / 'out'} (sink rows-1-sink-1): " in shown.out
    assert "published up to epoch 1" in shown.out
    assert names(tmp_path) == before
    said = holdfast(*words, "--json").json
    assert said["removed"]
    assert [one["sink"] for one in said["targets"]] == ["rows-1-sink-1"]
    assert not (tmp_path / "work" / "ledger.db").exists()
    assert holdfast(*words, "--yes").out == "There is nothing to remove.\n"
