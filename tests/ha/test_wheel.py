"""README.md and the tutorial from a wheel: built from what is committed, installed into an empty environment, run far from the checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pages import PROGRAMS, blocks

ROOT = Path(__file__).resolve().parents[2]
ORDERS = """
import pyarrow as pa, pyarrow.parquet as pq
for n in range(4):
    ids = [f"{n}-{i}" for i in range(50)]
    ts = pa.array([(60 * n + i) * 1_000_000 for i in range(50)], pa.timestamp("us", "UTC"))
    amounts, users = [float(i % 7) for i in range(50)], [f"u{i % 5}" for i in range(50)]
    qty = pa.array([1 + i % 3 for i in range(50)], pa.int32())
    rows = pa.table({"id": ids, "user": users, "amount": amounts, "qty": qty, "ts": ts})
    pq.write_table(rows, f"in/{n}.parquet")
"""


def typed(command: str, directory: Path, home: Path, first: Path) -> str:
    """What a command says to somebody who has nothing of a checkout around."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name in ("JAVA_HOME", "LANG", "SSL_CERT_FILE", "TMPDIR")
    }
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=directory,
        env={**kept, "HOME": str(home), "PATH": f"{first}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose `holdfast` is an environment with the wheel; the clone that it was built from is gone."""
    place = tmp_path_factory.mktemp("wheel")
    clone, home = place / "clone", place / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    # `make wheel` would fill the clone's own environment first, with all that tests need.
    (clone / ".venv").symlink_to(sys.prefix)
    install = next(block for block in blocks(ROOT / "README.md", "sh") if "make wheel" in block)
    typed(install.replace("make wheel", "scripts/wheel"), clone, home, Path(sys.executable).parent)
    (clone / ".venv").unlink()
    shutil.rmtree(clone)
    return home


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_readme_runs_as_written_from_a_wheel_in_an_empty_directory(home: Path, tmp_path: Path) -> None:
    def run(command: str) -> str:
        return typed(command, tmp_path, home, home / "holdfast" / "bin")

    assert "site-packages" in run("python -c 'import holdfast; print(holdfast.__file__)'")
    (tmp_path / "orders.py").write_text(blocks(ROOT / "README.md", "python")[0])
    (tmp_path / "in").mkdir()
    run(f"python -c {shlex.quote(ORDERS)}")
    assert re.search(r"^totals +[0-9]+ +168 ", run("python orders.py"), re.MULTILINE), "epochs, rows"
    commands = next(block for block in blocks(ROOT / "README.md", "sh") if "holdfast run" in block)
    for command in commands.strip().splitlines():
        said = run(command)
    assert "totals" in said
    assert "no violation" in run("holdfast verify orders.py")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tutorial_runs_as_written_from_a_wheel(home: Path) -> None:
    """The walks type their commands in that environment; what they judge by is here."""
    programs = home / "holdfast" / "bin"
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_SUBMIT_OPTS")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    walks = "runs_as_written or differ_as_written"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", walks, "tests/ha/test_tutorial.py"],
        cwd=ROOT,
        env={**kept, PROGRAMS: str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
