"""A Spark Connect server as a process of its own, on a free port of the loopback interface.

Drivers that are killed come and go; the server with its JVM and its warm Python workers stays. So a run costs seconds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from holdfast.core import limits
from holdfast.core.errors import StorageError
from holdfast.core.python_path import for_tasks
from holdfast.verify.parent import die_with_the_parent

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(home: Path, conf: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server, wait until it listens, give its address, and end it."""
    port = _free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # A server of minutes: the second compiler would cost more than it gains. Without it the code cache would be 48 MB,
        # which long campaigns fill.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(home / "spark"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        **(conf or {}),
    }
    flags = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]", "--class", _SERVER, *flags, "spark-internal"]
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": for_tasks()},
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_the_parent,
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
    deadline = time.monotonic() + limits.SERVER_START_MS_MAX / 1000
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise StorageError(
                f"Spark's Connect server does not start: {log.read_text()[-2000:]}", operation="start server"
            )
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(limits.WATCH_MS / 1000)
