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


def orders(*rows: tuple[str, str, float, int, int]) -> pa.Table:
    """Orders by id, user, amount, quantity and second."""
    ids, users, amounts, quantities, seconds = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))
    return pa.table(
        {"id": ids, "user": users, "amount": amounts, "qty": pa.array(quantities, pa.int32()), "ts": times}
    )


@pytest.mark.timeout(500)
def test_the_readmes_flow_and_commands_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(blocks(ROOT / "README.md", "python")[0])
    write_files(
        tmp_path / "in", [orders(("a", "x", 2.0, 1, 5), ("b", "y", -1.0, 1, 5), ("c", "x", 0.5, 4, 9))]
    )
    assert "2 rows in 1 epochs" in shell(tmp_path, "python orders.py")
    write_files(tmp_path / "in", [orders(("a", "x", 2.0, 1, 5), ("d", "z", 1.0, 1, 70))], first=1)
    commands = next(block for block in blocks(ROOT / "README.md", "sh") if "holdfast run" in block)
    for command in commands.strip().splitlines():
        said = shell(tmp_path, command)
    assert "totals" in said
    assert "1 duplicates" in said
    (row,) = read_sink(tmp_path / "out").to_pylist()
    assert (row["user"], row["total"], row["n"], row["top"]) == ("x", 4.0, 2, 2.0)
    assert (row["window_start"].second, row["window_end"].minute) == (0, 1)


@pytest.mark.timeout(300)
def test_the_event_time_flow_runs_as_written(tmp_path: Path) -> None:
    (tmp_path / "clicks.py").write_text(blocks(ROOT / "docs" / "EVENT_TIME.md", "python")[0])
    hour = 3600
    seconds = [hour + 5, hour + 50, hour + 5, hour + 65, 2 * hour + 1, 30]
    clicks = pa.table(
        {
            "id": ["a", "b", "a", "c", "d", "old"],
            "user": ["x"] * 6,
            "ms": pa.array([10, 30, 10, 20, 5, 1], pa.int32()),
            "at": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        }
    )
    write_files(tmp_path / "in", [clicks.slice(0, 4), clicks.slice(4, 1), clicks.slice(5, 1)])
    shell(tmp_path, "python clicks.py")
    per_minute = read_sink(tmp_path / "per_minute").sort_by("window_start")
    assert (per_minute["n"].to_pylist(), per_minute["slowest"].to_pylist()) == ([2, 1, 1], [30, 20, 5])
    busiest = read_sink(tmp_path / "busiest").sort_by("window_start")
    assert (busiest["minutes"].to_pylist(), busiest["most"].to_pylist()) == ([2, 1], [2, 1])
    assert read_sink(tmp_path / "late")["id"].to_pylist() == ["old"]


@pytest.mark.timeout(300)
def test_the_join_runs_as_written(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(blocks(ROOT / "docs" / "EVENT_TIME.md", "python")[1])

    def table(times: list[int], **columns: list[object]) -> pa.Table:
        at = pa.array([second * 1_000_000 for second in times], pa.timestamp("us", "UTC"))
        return pa.table({**columns, "at": at})

    hour = 3600
    amounts = pa.array([5, 7, 9, 1], pa.int32())
    orders = table([hour, hour + 60, 3 * hour], order=["a", "b", "c"], user=["x", "y", "x"])
    payments = table([hour + 90, hour + 91, 3 * hour, 30], order=["a", "a", "z", "a"]).add_column(
        1, "amount", amounts
    )
    write_files(tmp_path / "orders", [orders.slice(0, 2), orders.slice(2)])
    write_files(tmp_path / "payments", [payments.slice(0, 3)])
    shell(tmp_path, "python shop.py")
    write_files(tmp_path / "payments", [payments.slice(3)], first=1)
    shell(tmp_path, "python shop.py")
    found = read_sink(tmp_path / "paid").drop(["epoch"])
    assert found.column_names == ["order", "user", "at", "amount", "at_right"]
    pairs = zip(found["order"].to_pylist(), found["amount"].to_pylist(), strict=True)
    assert sorted(pairs, key=str) == [("a", 5), ("a", 7), ("b", None), ("c", None)]
    assert read_sink(tmp_path / "late_payments")["amount"].to_pylist() == [1]


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
