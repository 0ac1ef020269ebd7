"""What the documentation shows runs as written, and what it links to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from batch import read_sink, write_files

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def shell(home: Path, command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=home,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.timeout(500)
def test_the_readmes_flow_and_commands_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(blocks(ROOT / "README.md", "python")[0])
    day = pa.table(
        {
            "id": ["a", "b", "c"],
            "user": ["x", "y", "x"],
            "amount": [2.0, -1.0, 0.5],
            "qty": pa.array([1, 1, 4], pa.int32()),
        }
    )
    write_files(tmp_path / "in", [day])
    assert "3 rows in 1 epochs" in shell(tmp_path, "python orders.py")
    write_files(tmp_path / "in", [day], first=1)
    commands = next(block for block in blocks(ROOT / "README.md", "sh") if "holdfast run" in block)
    for command in commands.strip().splitlines():
        said = shell(tmp_path, command)
    assert "totals" in said
    rows = {
        (row["epoch"], row["user"]): (row["total"], row["n"], row["top"])
        for row in read_sink(tmp_path / "out").to_pylist()
    }
    assert rows == {(0, "x"): (4.0, 2, 2.0), (1, "x"): (8.0, 4, 2.0)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    named = re.findall(
        r"`((?:core|flow|protocols|ledger|storage|state|channels|spark|sources|sinks|runtime)/\w+\.py)`", text
    )
    assert [name for name in named if not (ROOT / "src" / "holdfast" / name).exists()] == []


def test_the_makefile_has_what_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets
