"""The same flow on a Spark Connect server: its client killed, run again, and exact."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.verify.server import connect_server
from stand import Stand


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
    assert status == 0, said
    stand.check(spark)
    assert sum(kind == "taken" for kind, _ in stand.events()) == 2
