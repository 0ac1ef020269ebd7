"""A Spark Connect server as a process of its own, on a free port of the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

SECONDS_MAX = 120


@contextmanager
def connect_server(home: Path, conf: dict[str, str] | None = None) -> Iterator[str]:
    """Start a server, wait until it listens, give its address, and end it."""
    port = _free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(home / "spark"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        **(conf or {}),
    }
    flags = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]", "--class", server, *flags, "spark-internal"]
    path = os.pathsep.join(sys.path)
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_it_listens(process, port, home / "server.log")
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
