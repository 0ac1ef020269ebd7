"""Flows whose ledger is in PostgreSQL: killed, failed over, and left without their server for a while."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import servers
from guard import Guard
from holdfast.core.errors import LedgerError
from holdfast.ledger.location import PASSWORD_VARIABLE, POINTER_NAME
from holdfast.ledger.status import status
from holdfast.spark.session import make_session
from pages import blocks, shell
from postgres_ledger import without_password
from stand import SECONDS_MAX, Stand

PAGE = Path(__file__).resolve().parents[2] / "docs" / "LEDGER_POSTGRES.md"
FILES = 14
ROWS = 20

SUMS = """
import os, sys
import holdfast as hf
home = sys.argv[1]
flow = hf.Flow("sums")
rows = flow.source("rows", hf.files(f"{home}/in", schema="k long, v long", max_files_per_epoch=1))
rows.group_by("k").agg(total=hf.sum("v")).named("totals").to(hf.parquet(f"{home}/out"))
flow.run(f"{home}/work", until_idle=True, master="local[1]", ledger=os.environ.get("LEDGER"),
         conf={"spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1"})
"""


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The home and the address of a server that may be restarted."""
    home = tmp_path_factory.mktemp("services")
    done = servers.services("start", "postgres", home=home)
    missing = home / "postgres" / "missing"
    if missing.exists():
        servers.be_without("postgres", missing.read_text().strip())
    assert done.returncode == 0, done.stderr
    yield home, (home / "postgres" / "address").read_text().strip()
    servers.services("remove", home=home)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session("judge", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


def start(home: Path, **env: str) -> subprocess.Popen[str]:
    (home / "sums.py").write_text(SUMS)
    return subprocess.Popen(
        [sys.executable, str(home / "sums.py"), str(home)], env={**os.environ, **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def feed(home: Path) -> dict[int, int]:
    """Write the input; what every key must add up to."""
    (home / "in").mkdir()
    totals: dict[int, int] = {}
    for number in range(FILES):
        keys, values = [i % 7 for i in range(ROWS)], [number * ROWS + i for i in range(ROWS)]
        pq.write_table(pa.table({"k": keys, "v": values}), home / "in" / f"{number:03}.parquet")
        for key, value in zip(keys, values, strict=True):
            totals[key] = totals.get(key, 0) + value
    return totals


def sums(home: Path) -> dict[int, int]:
    """What the sink says of every key last."""
    found = pq.read_table(home / "out").to_pandas().sort_values("epoch")
    return {int(key): int(total) for key, total in zip(found.k, found.total, strict=True)}


def wait_for_head(home: Path, head: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        try:
            if status(home / "work")["stages"]["totals"]["epoch"] >= head:
                return
        except (LedgerError, KeyError):
            pass
        time.sleep(0.1)
    raise AssertionError("the flow makes no progress")


def test_a_flow_survives_its_death_and_a_restart_of_its_ledgers_server(
    own_server: tuple[Path, str], tmp_path: Path
) -> None:
    service, url = own_server
    password = str(urlsplit(url).password)
    expected = feed(tmp_path)
    killed = start(tmp_path, LEDGER=url, HOLDFAST_CRASH="commit.after:3")
    said = killed.communicate(timeout=SECONDS_MAX)
    assert killed.returncode == -signal.SIGKILL, said
    assert status_of(tmp_path, password) == 2
    # Where the ledger is, the work directory says; only the password has to be given again.
    again = start(tmp_path, **{PASSWORD_VARIABLE: password})
    os.environ[PASSWORD_VARIABLE] = password
    try:
        wait_for_head(tmp_path, 6, again)
        assert servers.services("restart", "postgres", home=service).returncode == 0
        out, err = again.communicate(timeout=SECONDS_MAX)
    finally:
        del os.environ[PASSWORD_VARIABLE]
    assert again.returncode == 0, err
    assert status_of(tmp_path, password) == FILES - 1
    assert sums(tmp_path) == expected
    assert password not in f"{said} {out} {err}"
    kept = [file for file in (tmp_path / "work").rglob("*") if file.is_file()]
    assert tmp_path / "work" / POINTER_NAME in kept
    assert not any(password.encode() in file.read_bytes() for file in kept)


def status_of(home: Path, password: str) -> int:
    """The head, as somebody who is given the work directory finds it."""
    program = "import sys; from holdfast.interfaces.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "epochs", "totals", "--work-dir", str(home / "work"), "--json"]
    env = {**os.environ, PASSWORD_VARIABLE: password}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)["head"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_takes_over_and_the_zombie_is_refused(
    postgres: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(tmp_path)
    stand.feed(8)
    monkeypatch.setenv(PASSWORD_VARIABLE, str(urlsplit(postgres).password))
    guard = Guard(stand, "warm", "--ledger", postgres)
    try:
        guard.wait_for_head(2)
        guard.wait_for_standby()
        assert no_secret_on_a_command_line(guard, str(urlsplit(postgres).password))
        hung = guard.primary()
        os.kill(guard.pid(hung), signal.SIGSTOP)
        guard.wait_for_another_primary(hung["worker"])
        stand.feed(4)
        os.kill(guard.pid(hung), signal.SIGCONT)
        guard.wait_until_all_is_out()
        refused = (guard.root / "logs" / f"{hung['worker']}.log").read_text(errors="replace")
        assert "FencedError" in refused
        code, said = guard.stop()
        assert code == 0, said
        stand.check(spark)
    finally:
        guard.close()


ORDERS = """
import holdfast as hf

flow = hf.Flow("orders")
rows = flow.source("rows", hf.files("in/", schema="k long, v long"))
rows.group_by("k").agg(total=hf.sum("v")).named("totals").to(hf.parquet("out/"))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_keep_the_ledger_in_the_database(postgres: str, tmp_path: Path) -> None:
    """As written, but that both runs end when they are idle, and that nothing is installed."""
    (block,) = blocks(PAGE, "sh")
    install, *commands = block.splitlines()
    assert install == "pip install 'holdfast[postgres]'"
    assert "postgres" in metadata("holdfast").get_all("Provides-Extra", [])
    password = str(urlsplit(postgres).password)
    for shown, real in {
        "PASSWORD=...": f"PASSWORD={shlex.quote(password)}",
        "postgresql://holdfast@db1:5432/ledgers": shlex.quote(without_password(postgres)),
        "run orders.py": "run orders.py --until-idle",
    }.items():
        commands = [command.replace(shown, real) for command in commands]
    (tmp_path / "orders.py").write_text(ORDERS)
    expected = feed(tmp_path)
    said = shell(tmp_path, "\n".join(commands))
    assert sums(tmp_path) == expected
    assert "flow orders" in said
    assert password not in said
    assert (tmp_path / "work" / "orders" / POINTER_NAME).exists()
    assert not (tmp_path / "work" / "orders" / "ledger.db").exists()


def no_secret_on_a_command_line(guard: Guard, password: str) -> bool:
    """Of the processes that the supervisor has started."""
    workers = [worker for worker in guard.group()["workers"] if worker["lives"]]
    lines = [Path(f"/proc/{guard.pid(worker)}/cmdline").read_bytes() for worker in workers]
    return bool(lines) and not any(password.encode() in line for line in lines)


def test_a_database_that_refuses_schemas_is_told_as_it_is(
    own_server: tuple[Path, str], tmp_path: Path
) -> None:
    from holdfast.ledger.ledger import Ledger
    from holdfast.ledger.location import chosen

    url = own_server[1]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
    guest = urlsplit(url)._replace(netloc=f"reader:reads@{urlsplit(url).netloc.rpartition('@')[2]}").geturl()
    with pytest.raises(LedgerError, match="permission denied for database") as refused:
        Ledger(tmp_path, chosen(tmp_path, guest, "flow"))
    assert "allowed to make a schema" in str(refused.value)
