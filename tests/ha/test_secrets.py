"""A supervised run with planted secrets: nothing that it leaves, says or shows while it runs holds any of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from batch import write_files
from holdfast.runtime.evidence import kin
from planted import argument_lists, files_with, shown, workers

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
PLANTED = "x9planted"  # every secret begins so

FLOW = """
import holdfast as hf

flow = hf.Flow("sums")
rows = flow.source("rows", hf.files("in/", schema="k long, v long", max_files_per_epoch=1))
sums = rows.group_by("k").agg(s=hf.sum("v")).named("sums")
sums.to(hf.table("sqlite:///out.db", "sums", key="k"))
sums.to(hf.parquet("out/"))
"""
DESCRIBED = f"""
import holdfast as hf

flow = hf.Flow("described")
password = {{"sasl.password": "{PLANTED}-kafka"}}
rows = flow.source("rows", hf.kafka("host:9092", "in", schema="k long, v long", options=password))
sums = rows.group_by("k").agg(s=hf.sum("v")).named("sums")
sums.to(hf.table("postgresql://me:{PLANTED}-table@127.0.0.1:1/db", "sums", key="k"))
sums.to(hf.kafka_sink("host:9092", "out", options=password))
"""
REFUSED = f"""
import holdfast as hf

hf.table("mysql://me:{PLANTED}-refused@host/db", "sums")
"""
RAISES = f"""
raise ValueError("cannot reach postgresql://me:{PLANTED}-raised@host/db")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_files(tmp_path / "in", [pa.table({"k": [1, 2, 3], "v": [n, n, 5]}) for n in range(3)])
    (tmp_path / "flow.py").write_text(FLOW)
    secrets = tmp_path / "secrets.conf"
    secrets.touch(mode=0o600)
    # One is called a secret and one is not: neither is anybody's business.
    secrets.write_text(
        f"spark.hadoop.fs.s3a.secret.key {PLANTED}-key\nspark.planted.value = {PLANTED}-value\n"
    )
    return tmp_path


def holdfast(home: Path, *words: str) -> str:
    """All that a command says."""
    done = subprocess.run(
        [HOLDFAST, *words], cwd=home, capture_output=True, text=True, timeout=240, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(400)
def test_no_secret_of_a_run_is_left_or_shown_anywhere(home: Path) -> None:
    command = ["run", "flow.py", "--work-dir", "work", "--master", "local[2]", "--verbose", "--json"]
    # What is in the arguments of the command itself is there by the user's own doing, and should go no further.
    settings = ["--conf-file", "secrets.conf", "--conf", f"spark.planted.argument={PLANTED}-argument"]
    process = subprocess.Popen(
        [HOLDFAST, *command, *settings],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o022,
    )
    seen: dict[int, bytes] = {}
    try:
        deadline = time.monotonic() + 180
        while not (home / "out" / "epoch=00000002").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            seen |= (listed := argument_lists(but=process.pid))
            assert not shown([PLANTED], listed.values())
            time.sleep(0.05)
        ((name, worker),) = workers(home / "work")
        of_the_worker = [seen[pid] for pid in kin(worker, name) if pid in seen]
        assert any(
            b"holdfast.runtime.process\0sums\0main\0" + name.encode() in words for words in of_the_worker
        )
        assert any(b"org.apache.spark.deploy.SparkSubmit" in words for words in of_the_worker)
        told = holdfast(home, "status", "--work-dir", "work", "--json") + holdfast(
            home, "workers", "--work-dir", "work", "--json"
        )
        process.send_signal(signal.SIGTERM)
        told += "".join(process.communicate(timeout=120))
        assert process.returncode == 0, told
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
            for _, worker in workers(home / "work"):
                worker.end()
    assert PLANTED not in told
    assert (home / "work" / "ledger.db").is_file()
    assert (home / "work" / "logs" / f"{name}.log").is_file()
    assert files_with([PLANTED], home, but=[home / "secrets.conf"]) == []
    check_modes(home)


def check_modes(home: Path) -> None:
    """The work directory lets nobody in; what is published, a link to a segment at first, is as readable as the umask says."""
    assert (home / "work").stat().st_mode & 0o777 == 0o700
    (published,) = (home / "out" / "epoch=00000000").glob("*.parquet")
    assert published.stat().st_mode & 0o777 == 0o644
    assert {path.stat().st_mode & 0o777 for path in (home / "out", published.parent)} == {0o755}


@pytest.mark.timeout(120)
def test_no_secret_of_a_description_is_told(home: Path) -> None:
    for name, text in (("described", DESCRIBED), ("refused", REFUSED), ("raises", RAISES)):
        (home / f"{name}.py").write_text(text)
    explained = json.loads(holdfast(home, "explain", "described.py", "--json"))
    assert {"kafka", "table"} <= {sink["kind"] for sink in explained["sinks"]}
    assert PLANTED not in json.dumps(explained)
    assert PLANTED not in holdfast(home, "explain", "described.py")
    refused = holdfast(home, "run", "refused.py")
    assert "mysql://me:***@host/db is neither" in refused
    assert PLANTED not in refused
    raised = holdfast(home, "run", "raises.py", "--json")
    assert "cannot reach postgresql://me:***@host/db" in raised
    assert PLANTED not in raised


@pytest.mark.timeout(60)
def test_a_file_of_settings_that_others_may_read_is_refused(home: Path) -> None:
    (home / "secrets.conf").chmod(0o640)
    said = holdfast(home, "run", "flow.py", "--work-dir", "work", "--conf-file", "secrets.conf")
    assert "chmod 600 secrets.conf" in said
    assert PLANTED not in said
    assert not (home / "work").exists()
