"""A stop, and a promotion, while a task takes its time: nobody waits for the task, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from batch import read_sink, write_files
from holdfast.core.errors import LedgerError
from holdfast.ledger.ledger import reading
from holdfast.ledger.roster import roster
from holdfast.verify.server import connect_server

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
# A task sleeps for longer than anything here takes while the file `drowsy` is there.
SLEEP_S = 300
FLOW = f"""
import time
from pathlib import Path

from pyspark.sql import functions as f

import holdfast as hf

HOME = Path(__file__).parent


def slow(value):
    if (HOME / "drowsy").exists():
        (HOME / "asleep").touch()
        time.sleep({SLEEP_S})
    return value


flow = hf.Flow("slow", recover=hf.no_sync(members=MEMBERS))
rows = flow.source("rows", hf.files(str(HOME / "in"), schema="k long, v long", max_files_per_epoch=1))
slowly = rows.transform(lambda df: df.withColumn("v", f.udf(slow, "long")("v")))
slowly.group_by("k").agg(s=hf.sum("v")).named("sums").to(hf.parquet(str(HOME / "out")))
"""


class Home:
    """A flow's home, and the command that runs it."""

    def __init__(self, path: Path, members: int) -> None:
        self.path = path
        self.work = path / "work"
        self.fed = 0
        (path / "slow.py").write_text(FLOW.replace("MEMBERS", str(members)))
        self.feed()

    def feed(self) -> None:
        write_files(self.path / "in", [pa.table({"k": [1, 2], "v": [self.fed, 3]})], first=self.fed)
        self.fed += 1

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [HOLDFAST, "run", "slow.py", "--work-dir", str(self.work), *options],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SLEEP_S - 60
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "not in time"
            time.sleep(0.05)

    def head(self) -> int:
        return next((head for (head,) in self.asked("select head from stages")), -1)

    def asked(self, query: str) -> list[tuple]:
        try:
            with reading(self.work) as tx:
                return [tuple(row) for row in tx.execute(sa.text(query))]
        except LedgerError:
            return []

    def workers(self) -> list[dict]:
        return list(roster(self.work)["groups"]["main"]["workers"])

    def primary(self) -> int:
        return next(int(w["process"]["pid"]) for w in self.workers() if w["part"] == "primary")

    def check(self) -> None:
        last = {row["k"]: row["s"] for row in read_sink(self.path / "out").sort_by("epoch").to_pylist()}
        assert last == {1: sum(range(self.fed)), 2: 3 * self.fed}


def all_end(session: int) -> bool:
    """Whether a worker and all that it started end well before the task would; a JVM takes a moment for it."""
    deadline = time.monotonic() + SLEEP_S / 5
    while processes_of(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes_of(session)


def processes_of(session: int) -> list[str]:
    """What is left of a worker and all that it started."""
    command = ["ps", "-o", "stat=,args=", "-s", str(session)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]


@pytest.fixture(params=["classic", pytest.param("connect", marks=pytest.mark.slow)])
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "classic":
            yield "local[2]"
        else:
            yield stack.enter_context(connect_server(tmp_path_factory.mktemp("connect")))


@pytest.mark.timeout(600)
def test_a_stop_does_not_wait_for_a_slow_task_and_the_next_run_is_exact(tmp_path: Path, master: str) -> None:
    home = Home(tmp_path, members=1)
    process = home.start("--master", master)
    home.wait(process, lambda: home.head() == 0)
    (tmp_path / "drowsy").touch()
    home.feed()
    home.wait(process, (tmp_path / "asleep").exists)
    worker = home.primary()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SLEEP_S - 60)
    print(f"stopped after {time.monotonic() - began:.1f} s")
    assert process.returncode == 0, err
    assert "Stopped" in out
    assert all_end(worker), "Spark's processes end too, without waiting for the task"
    kinds = [kind for (kind,) in home.asked("select kind from events order by seq")]
    assert kinds[-2:] == ["left", "released"], "the worker ended by itself, and was not killed"
    assert home.head() == 0
    assert home.asked("select epoch from plans where epoch = 1") == [(1,)], "the plan stays open"
    (tmp_path / "drowsy").unlink()
    again = home.start("--master", master, "--until-idle")
    _, err = again.communicate(timeout=SLEEP_S - 60)
    assert again.returncode == 0, err
    home.check()


@pytest.mark.timeout(600)
def test_a_promotion_does_not_wait_for_the_rehearsal_under_way(tmp_path: Path) -> None:
    home = Home(tmp_path, members=2)
    process = home.start("--master", "local[2]")
    try:
        home.wait(process, lambda: home.head() == 0 and len(home.workers()) == 2)
        (tmp_path / "drowsy").touch()
        home.wait(process, (tmp_path / "asleep").exists)
        (tmp_path / "drowsy").unlink()
        began = time.monotonic()
        os.kill(home.primary(), signal.SIGKILL)
        home.feed()
        home.wait(process, lambda: home.head() == 1)
        print(f"committed {time.monotonic() - began:.1f} s after the kill")
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SLEEP_S - 60)
    assert process.returncode == 0, err
    home.check()
