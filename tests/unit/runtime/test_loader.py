"""Flows are found in files and modules; a file that runs its flow while it is imported is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.python_path import for_tasks
from holdfast.runtime.failure import facts_of
from holdfast.runtime.loader import load

FLOW = """
import holdfast as hf
flow = hf.Flow("orders")
flow.source("in", hf.files("in/", schema="k long")).to(hf.discard())
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_only_flow_of_a_file_needs_no_name(tmp_path: Path) -> None:
    path = written(tmp_path / "orders_flow.py", FLOW)
    assert load(path).name == "orders"
    assert load(f"{path}:flow").name == "orders"


def test_a_module_is_found_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "orders_module.py", FLOW)
    monkeypatch.chdir(tmp_path)
    assert load("orders_module:flow").name == "orders"


def test_what_is_not_there_is_listed(tmp_path: Path) -> None:
    path = written(tmp_path / "two_flows.py", FLOW + '\nother = hf.Flow("other")\n')
    with pytest.raises(
        hf.FlowImportError, match=r"it holds 2 flows.*two_flows\.py:flow, .*two_flows\.py:other"
    ):
        load(path)
    with pytest.raises(hf.FlowImportError, match="no flow named 'missing'"):
        load(f"{path}:missing")
    with pytest.raises(hf.FlowImportError, match="there is no file"):
        load(str(tmp_path / "missing.py"))


def test_a_file_that_runs_at_import_is_told_about_main(tmp_path: Path) -> None:
    path = written(tmp_path / "eager_flow.py", FLOW + '\nflow.run("work/")\n')
    with pytest.raises(hf.FlowImportError, match=r'__name__ == "__main__"'):
        load(path)


def test_a_file_that_cannot_be_imported_is_a_flow_import_error(tmp_path: Path) -> None:
    path = written(tmp_path / "broken_flow.py", "import nothing_of_this_name\n")
    with pytest.raises(hf.FlowImportError, match="ModuleNotFoundError"):
        load(path)


BROKEN = {
    "syntax": ("import holdfast as hf\nflow = hf.Flow('f'\n", 2, None),
    "a missing module": (
        "import holdfast as hf\n\nimport nobody.has_this\n",
        3,
        "if nobody.py is yours, put it beside",
    ),
    "an error": ("def rate():\n    return 1 / 0\n\n\nrate()\n", 2, None),
    "in a context": ("from contextlib import suppress\nwith suppress(KeyError):\n    int('x')\n", 3, None),
}


@pytest.mark.parametrize(("text", "line", "hint"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_imported_is_told_by_its_own_line(
    tmp_path: Path, text: str, line: int, hint: str | None
) -> None:
    path = written(tmp_path / "broken_flow.py", text)
    with pytest.raises(hf.FlowImportError) as caught:
        load(path)
    facts = facts_of(caught.value)
    assert facts["line"] == f"{path}:{line}"
    assert (hint is None and facts["hint"] is None) or str(hint) in facts["hint"]


def test_a_module_beside_the_flow_is_found_also_when_its_code_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "rates_beside.py").write_text("RATE = 3\n")
    path = written(
        tmp_path / "rated_flow.py",
        FLOW + "\n\ndef rate():\n    import rates_beside\n    return rates_beside.RATE\n",
    )
    load(path)
    assert sys.modules["rated_flow"].rate() == 3
    assert sys.path[-1] == str(tmp_path)
    assert str(tmp_path) in for_tasks().split(os.pathsep)
    other = tmp_path / "other"
    other.mkdir()
    load(written(other / "other_flow.py", FLOW))
    assert str(tmp_path) not in sys.path, "only one flow's directory is on the path"


def test_a_module_beside_the_flow_with_a_taken_name_is_told_where_the_flow_imports_it(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("raise ImportError('mine')\n")
    (tmp_path / "numpy.py").write_text("raise ImportError('mine')\n")
    (tmp_path / "passes_on.py").write_text("def late():\n    from types import SimpleNamespace\n")
    assert load(written(tmp_path / "silent_flow.py", FLOW)).name == "orders"
    for name, text in (("types", "import passes_on\n"), ("numpy", "import numpy as np\n")):
        with pytest.raises(hf.FlowImportError) as caught:
            load(written(tmp_path / "telling_flow.py", text + FLOW))
        assert f"imports {name!r}" in caught.value.message
        assert f"Rename {tmp_path / name}.py" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["random", "pyspark"])
def test_a_flow_may_not_have_the_name_of_a_module_that_is_needed(tmp_path: Path, name: str) -> None:
    before = sys.modules.get(name)
    with pytest.raises(hf.FlowImportError, match=rf"{name}\.py has the name of .*\n?") as caught:
        load(written(tmp_path / f"{name}.py", FLOW))
    assert "Rename" in str(caught.value.hint)
    assert sys.modules.get(name) is before


def test_a_module_in_the_current_directory_with_a_taken_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "json.py", FLOW)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hf.FlowImportError, match="has the name of"):
        load("json:flow")
    written(tmp_path / "imports_json.py", "import json\n" + FLOW)
    with pytest.raises(hf.FlowImportError, match="imports 'json'"):
        load("imports_json:flow")


def test_tasks_find_the_directory_of_a_script_behind_all_others(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\nfrom holdfast.core.python_path import for_tasks\nprint(for_tasks().split(os.pathsep)[-1])"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path)
