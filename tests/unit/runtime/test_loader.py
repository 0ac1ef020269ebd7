"""Flows are found in files and modules; a file that runs its flow while it is imported is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
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
