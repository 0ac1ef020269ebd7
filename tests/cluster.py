"""A standalone Spark cluster on loopback, of the installed PySpark: a master and workers of one core each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pyspark

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_START_S_MAX = 120
_END_S_MAX = 20

# What a driver needs to be found by executors on loopback, and for these to be small.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
}


@contextmanager
def standalone(home: Path, workers: int = 2) -> Iterator[str]:
    """The master's address, once every worker has registered; whatever happens, all of it ends with the block."""
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = home / "master.log"
        master = stack.enter_context(_daemon(log, f"{_DEPLOY}.master.Master", "--host", "127.0.0.1"))
        address = _said(master, log, r"Starting Spark master at (spark://\S+)")
        logs = [home / f"worker-{number}.log" for number in range(workers)]
        started = [stack.enter_context(_worker(log, address)) for log in logs]
        for worker, log in zip(started, logs, strict=True):
            _said(worker, log, r"(Successfully registered) with master")
        yield address


def _worker(log: Path, address: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    size = ["--cores", "1", "--memory", "1g", "--work-dir", str(log.with_suffix(""))]
    return _daemon(log, f"{_DEPLOY}.worker.Worker", "--host", "127.0.0.1", *size, address)


@contextmanager
def _daemon(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        **os.environ,
        "SPARK_HOME": str(SPARK_CLASS.parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ports = ["--port", "0", "--webui-port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_CLASS), words[0], *ports, *words[1:]],
            env=env, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()  # a worker ends its executors
        try:
            process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _said(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _START_S_MAX
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found.group(1)
