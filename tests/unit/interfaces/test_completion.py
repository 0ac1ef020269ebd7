"""The shell is told the commands, and the stages of the work directory; flow files it completes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import holdfast
from written_state import WrittenState


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """What bash offers for the last word of a line."""

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        said = holdfast()
        assert (said.status, said.err) == (0, "")
        return said.out.split()

    return offered


def test_commands_complete(typed) -> None:
    assert {"run", "status", "epochs", "state", "explain"} <= set(typed("holdfast "))
    assert typed("holdfast ep") == ["epochs"]


@pytest.mark.parametrize("command", ["epochs", "state"])
def test_stages_complete_from_the_work_directory(typed, work: Path, command: str) -> None:
    WrittenState(work)
    assert typed(f"holdfast {command} --work-dir {work} ") == ["means"]
    assert typed(f"holdfast {command} --work-dir {work} me") == ["means"]
    assert typed(f"holdfast {command} --work-dir {work} x") == []


def test_stages_complete_from_the_only_work_directory_or_the_environment(
    typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed("holdfast epochs ") == []
    WrittenState(Path("work") / "written")
    assert typed("holdfast epochs ") == ["means"]
    WrittenState(Path("work") / "other")
    assert typed("holdfast epochs ") == []
    monkeypatch.setenv("HOLDFAST_WORK_DIR", "work/other")
    assert typed("holdfast epochs ") == ["means"]


def test_a_directory_without_a_flow_completes_to_nothing_and_says_nothing(typed, tmp_path: Path) -> None:
    assert typed(f"holdfast state --work-dir {tmp_path} ") == []


def test_flows_are_left_to_the_shells_own_completion_of_files(typed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("holdfast explain ord") == []
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "source_bash")
    script = holdfast().out
    assert "complete -o default" in script
    assert script.rstrip().endswith("holdfast")
