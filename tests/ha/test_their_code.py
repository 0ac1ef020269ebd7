"""A supervised flow whose code raises: told at once, by one worker, with the user's own file and line.

Its code uses modules that lie beside it, in the worker and in Spark's tasks; others there have names of Python's own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from batch import read_sink, write_files
from holdfast.ledger.ledger import reading

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
FLOW = """
from pathlib import Path

from pyspark.sql import functions as f

import beside_the_flow
import holdfast as hf

CALLS = Path(__file__).with_name("calls")


def share(value):
    if value == 0:
        CALLS.open("a").write("called\\n")
    import only_in_tasks

    assert only_in_tasks.DOZEN == beside_the_flow.DOZEN
    return 12 // value


flow = hf.Flow("shares")
rows = flow.source("rows", hf.files("in/", schema="k long, v long", max_files_per_epoch=1))
shares = rows.transform(lambda df: df.withColumn("v", f.udf(share, "long")("v"))).group_by("k")
shares.agg(s=hf.sum("v")).named("sums").to(hf.parquet("out/"))
"""


def run(home: Path) -> subprocess.CompletedProcess[str]:
    command = [HOLDFAST, "run", "shares.py", "--work-dir", "work", "--until-idle", "--master", "local[2]"]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=240, check=False)


def workers_started(home: Path) -> int:
    with reading(home / "work") as tx:
        return tx.execute(sa.text("select count(*) from events where kind = 'worker started'")).scalar_one()


@pytest.mark.timeout(300)
def test_code_that_raises_is_told_at_once_and_the_next_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "shares.py").write_text(FLOW)
    for name in ("beside_the_flow", "only_in_tasks"):
        (tmp_path / f"{name}.py").write_text("DOZEN = 12\n")
    # Nobody imports these: everybody goes on with Python's own, and with the NumPy that is installed.
    for name in ("types", "random", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}.py of the user')\n")
    write_files(tmp_path / "in", [pa.table({"k": [1, 2], "v": [n, 3]}) for n in (2, 0, 4)])
    failed = run(tmp_path)
    said, raised = failed.stderr, FLOW.splitlines().index("    return 12 // value") + 1
    assert failed.returncode == 1, said
    assert f'shares.py", line {raised}, in share\n    return 12 // value\n' in said
    assert "CodeError: the stage's code raised ZeroDivisionError" in said
    assert "where: stage sums, epoch 1" in said
    assert f"line:  {tmp_path / 'shares.py'}:{raised}" in said
    assert "pyspark" not in said
    assert workers_started(tmp_path) == 1
    assert (tmp_path / "calls").read_text().split() == ["called"], "nobody tried again"
    (log,) = (tmp_path / "work" / "logs").iterdir()
    assert f"log:   {log}" in said
    assert "handlePythonException" in log.read_text(), "the log has all that Spark said of it"
    assert not {"incubator", " WARN ", "log4j"} & set(re.findall("incubator| WARN |log4j", log.read_text()))
    write_files(tmp_path / "in", [pa.table({"k": [1, 2], "v": [6, 3]})], first=1)
    mended = run(tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert workers_started(tmp_path) == 2
    last = {row["k"]: row["s"] for row in read_sink(tmp_path / "out").sort_by("epoch").to_pylist()}
    assert last == {1: 6 + 2 + 3, 2: 4 * 3}
