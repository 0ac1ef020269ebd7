"""The power goes: whatever was not fsynced is gone or torn, and the flow goes on with exact sinks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flow_under_fire import ALONE, build
from holdfast.verify.power import cut
from stand import Stand

# In `make test`, `holdfast verify` cuts the power of a flow with the default policy.
MOMENTS = (
    "ship.mid:25",
    "commit.after:20",
    "sink.after_publish:9",
    "sink.after_record:14",
    "merge.after_commit",
    "sweep.mid:6",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", MOMENTS)
def test_bytes_that_were_not_fsynced_are_made_again(
    stand: Stand, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, moment: str
) -> None:
    """Stages with the default policy, upstream backup and strong production, on a process that dies with the power."""
    log: Path = tmp_path_factory.mktemp("fsyncs") / "log"
    stand.feed(14)
    status, said = stand.run(fsyncs=log, HOLDFAST_CRASH=moment)
    assert status == -signal.SIGKILL, said
    lost = [path.relative_to(stand.home).parts[:2] for path in cut(stand.home, log, stand.home / "in")]
    assert ("work", "data") in lost, "everything was fsynced, so this shows nothing"
    stand.feed(2)
    build(stand.home, ALONE).run(stand.home / "work", until_idle=True, spark=spark)
    stand.check(spark)


SCRIPT = """
import os, sys
def synced(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    os.fsync(fd)
    os.close(fd)
os.chdir(sys.argv[1])
os.mkdir("d")
for name in ("whole", "torn", "moved"):
    open(f"d/{name}", "w").write("12345678")
synced("d/whole"), synced("d/moved")
synced("d"), synced(".")
open("d/unnamed", "w").write("12345678")
synced("d/unnamed")
os.rename("d/moved", "d/moved-again")
os.mkdir("staged")
open("staged/part", "w").write("12345678")
synced("staged/part"), synced("staged"), synced(".")
os.rename("staged", "d/shown")
"""


def test_a_cut_takes_what_no_fsync_has_kept(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    aside = tmp_path_factory.mktemp("aside")
    (aside / "script.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "-m", "holdfast.verify.power", aside / "log", aside / "script.py", tmp_path],
        check=True,
    )
    assert [path.name for path in cut(tmp_path, aside / "log")] == ["moved-again", "part", "torn", "unnamed"]
    assert {path.name: path.stat().st_size for path in (tmp_path / "d").iterdir()} == {"whole": 8, "torn": 4}
