"""Errors are told once, with what, where, whether they heal and what to do; as JSON where JSON was asked for."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from command import holdfast
from holdfast.interfaces.cli import status
from holdfast.ledger import schema
from written_state import WrittenState


def test_a_directory_that_is_no_work_directory_is_told_apart(tmp_path: Path) -> None:
    assert "it does not exist" in holdfast("status", "--work-dir", tmp_path / "nowhere").err
    said = holdfast("status", "--work-dir", tmp_path)
    assert (said.status, said.out) == (1, "")
    assert "is not the work directory of a flow: ledger.db is not there" in said.err
    assert "--work-dir" in said.err
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("create table accounts (n int)")
    assert "the database of something else" in holdfast("epochs", "s", "--work-dir", tmp_path).err
    (tmp_path / "ledger.db").write_bytes(b"nothing like a database" * 100)
    assert "file is not a database" in holdfast("state", "s", "--work-dir", tmp_path).err


def test_looking_does_not_touch_what_is_not_ours(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("create table accounts (n int)")
    before = (tmp_path / "ledger.db").read_bytes()
    holdfast("status", "--work-dir", tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize(("version", "advice"), [(99, "or a newer one"), (1, "start the flow anew")])
@pytest.mark.parametrize("command", [["status"], ["epochs", "means"], ["state", "means"]])
def test_another_format_is_refused(work: Path, version: int, advice: str, command: list[str]) -> None:
    written = WrittenState(work)
    with written.ledger.unfenced_write() as tx:
        tx.execute(sa.update(schema.flow).values(format_version=version))
    error = holdfast(*command, "--work-dir", work, "--json").error
    assert f"format version {version}" in error["message"]
    assert advice in error["hint"]


def test_an_unknown_stage_is_answered_with_the_known_ones(work: Path) -> None:
    WrittenState(work)
    for command in ("epochs", "state"):
        error = holdfast(command, "totals", "--work-dir", work, "--json").error
        assert error["message"] == "there is no stage 'totals' in this flow"
        assert error["hint"] == "Its stages are means."


def test_json_errors_have_every_field(work: Path) -> None:
    said = holdfast("status", "--work-dir", work, "--json")
    assert (said.status, said.out) == (1, "")
    assert said.error == {
        "kind": "LedgerError",
        "message": f"{work} is not the work directory of a flow: it does not exist",
        "stage": None,
        "epoch": None,
        "operation": "open",
        "line": None,
        "heals": False,
        "hint": "Name the directory that the flow runs in with --work-dir; `holdfast run` makes it.",
        "traceback": None,
        "log": None,
    }


def test_mistakes_in_a_command_end_with_status_2() -> None:
    assert holdfast("epochs").status == 2
    assert holdfast("epochs", "s", "--last", "0").status == 2
    said = holdfast("epochs", "s", "--last", "none", "--json")
    assert (said.status, said.error["kind"]) == (2, "UsageError")
    assert "--last" in said.error["message"]


def test_an_unforeseen_fault_shows_where_it_came_from(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(status, "read_status", broken)
    said = holdfast("status", "--work-dir", work)
    assert said.status == 70
    assert "in broken" in said.err
    assert "ZeroDivisionError: planted\n  hint:  This is a fault in Holdfast" in said.err
    assert "in broken" in holdfast("status", "--work-dir", work, "--json").error["traceback"]


@pytest.mark.parametrize("place", ["before", "behind"])
def test_debug_shows_the_traceback_wherever_it_is_typed(work: Path, place: str) -> None:
    command = ["status", "--work-dir", work]
    words = ["--debug", *command] if place == "before" else [*command, "--debug"]
    said = holdfast(*words)
    assert said.status == 1
    assert "Traceback" in said.err
    assert said.err.rstrip().endswith("`holdfast run` makes it.")
    assert "Traceback" not in holdfast(*command).err


def test_a_flow_that_fails_to_import_shows_its_own_traceback_alone(tmp_path: Path) -> None:
    path = tmp_path / "failing_flow.py"
    path.write_text("import holdfast as hf\n\n\ndef make():\n    return 1 / 0\n\n\nflow = make()\n")
    said = holdfast("explain", path)
    assert said.status == 1
    assert said.err.startswith("Traceback (most recent call last):\n  File ")
    assert f'{path}", line 8, in <module>' in said.err
    assert "return 1 / 0" in said.err
    assert "loader.py" not in said.err
    assert "importlib" not in said.err
    assert "FlowImportError: " in said.err
    assert f'{path}", line 8' in holdfast("explain", path, "--json").error["traceback"]


def test_a_syntax_error_points_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "torn_flow.py"
    path.write_text("import holdfast as hf\nflow = hf.Flow(\n")
    said = holdfast("explain", path)
    assert f'{path}", line 2' in said.err
    assert "loader.py" not in said.err


def test_a_description_that_is_refused_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "refused_flow.py"
    path.write_text('import holdfast as hf\n\nflow = hf.Flow("a flow")\n')
    said = holdfast("explain", path)
    assert "PlanError: 'a flow' cannot name a flow" in said.err
    assert f"  line:  {path}:3" in said.err


def test_a_flow_file_that_ends_the_process_or_runs_at_import_is_told_about_main(tmp_path: Path) -> None:
    path = tmp_path / "ending_flow.py"
    path.write_text("import sys\n\nsys.exit(3)\n")
    assert '`if __name__ == "__main__":`' in holdfast("explain", path).err
    path = tmp_path / "eager_flow_2.py"
    path.write_text('import holdfast as hf\nflow = hf.Flow("f")\nflow.run("work/")\n')
    said = holdfast("run", path, "--json")
    assert said.error["kind"] == "FlowImportError"
    assert said.error["line"] == f"{path}:3"
    assert "__main__" in said.error["hint"]


def test_what_is_not_a_flow_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other_things.py"
    path.write_text("flow = 3\n")
    assert "'flow' is of type int" in holdfast("explain", f"{path}:flow").err
    assert "it holds no flow" in holdfast("explain", path).err
    assert "neither a Python file nor a module" in holdfast("explain", "flows/orders").err
    assert "No module named 'no_such_module'" in holdfast("explain", "no_such_module:flow").err


def test_the_work_directory_is_found_where_run_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no flow has run here" in holdfast("status", "--json").error["message"]
    WrittenState(Path("work") / "written")
    assert holdfast("status", "--json").json["flow"] == "written"
    WrittenState(Path("work") / "other")
    said = holdfast("status", "--json")
    assert said.status == 2
    assert "2 flows have run here: work/other, work/written" in said.error["message"]
    monkeypatch.setenv("HOLDFAST_WORK_DIR", "work/other")
    assert holdfast("status", "--json").status == 0
