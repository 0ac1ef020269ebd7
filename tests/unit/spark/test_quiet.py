"""What Spark says whenever it starts is dropped; errors and all else come through, also long after the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAID = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/18 15:50:37 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/18 15:50:42 ERROR SparkContext: Error initializing SparkContext.
java.net.BindException: address in use WARN
Setting Spark log level to "ERROR".
"""
PROGRAM = """
import subprocess, sys
from pathlib import Path
from holdfast.spark.quiet import quietly

jvm = ["bash", "-c", "cat said >&2; echo started; read; echo 'a function prints' >&2"]
with quietly(eval(sys.argv[1])):
    child = subprocess.Popen(jvm, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdout.readline().strip() == b"started"  # two who write to one stderr at once mix their lines
print("ours", file=sys.stderr, flush=True)
child.communicate(b"go on")
"""


@pytest.mark.parametrize("asked", [False, True])
def test_only_noise_is_dropped_and_only_unless_a_level_is_asked_for(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "said").write_text(SAID)
    conf = {"spark.log.level": "WARN"} if asked else {}
    command = [sys.executable, "-c", PROGRAM, repr(conf)]
    # Read to the end of the pipe, which the sieve holds open until the child has ended.
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    shown = set(done.stderr.splitlines())
    errors = {line for line in SAID.splitlines() if "ERROR S" in line or "BindException" in line}
    wanted = {*errors, "a function prints", "ours"}
    assert shown == ({*wanted, *SAID.splitlines()} if asked else wanted)


def test_a_process_without_a_stderr_starts_its_jvm_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(SAID)
    closed = PROGRAM.replace("jvm = [", "import os; os.close(2); sys.stderr = None\njvm = [")
    closed = closed.replace('print("ours", file=sys.stderr, flush=True)', "")
    subprocess.run([sys.executable, "-c", closed, "{}"], cwd=tmp_path, check=True, timeout=60)
