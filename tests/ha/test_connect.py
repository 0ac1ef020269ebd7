"""The same flow on a Spark Connect server: its client killed, run again, and exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.verify.server import connect_server
from stand import SECONDS_MAX, Stand

# The second stage looks at several rows of the stream; the first only at several of a table.
REFUSED = """
import sys

import holdfast as hf

home, master = sys.argv[1:]
flow = hf.Flow("refused")
rows = flow.source("rows", hf.files(f"{home}/in", schema="k bigint"))
names = lambda df: df.sparkSession.createDataFrame([(1, "one")], "k bigint, name string").distinct()
rows.transform(lambda df: df.join(names(df), "k")).named("named").to(hf.parquet(f"{home}/named"))
rows.transform(lambda df: df.join(df.groupBy("k").count(), "k")).named("counts").to(hf.parquet(f"{home}/counts"))
flow.run(f"{home}/work", until_idle=True, master=master)
"""


@pytest.mark.timeout(600)
def test_a_flow_on_a_connect_server_survives_the_death_of_its_client(
    stand: Stand, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home: Path = tmp_path_factory.mktemp("connect")
    stand.feed(6)
    with connect_server(home) as address:
        process = stand.start("--master", address)
        stand.wait_for(process, generation=1, head=2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        stand.feed(2)
        status, said = stand.run("--master", address)
        refused = said_by_a_flow_that_is_refused(home, address)
    assert "stage 'counts', transform] a transform has an aggregate" in refused
    assert status == 0, said
    stand.check(spark)
    assert sum(kind == "taken" for kind, _ in stand.events()) == 2


def said_by_a_flow_that_is_refused(home: Path, address: str) -> str:
    (home / "in").mkdir()
    (home / "refused.py").write_text(REFUSED)
    done = subprocess.run(
        [sys.executable, str(home / "refused.py"), str(home), address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode
    return done.stderr
