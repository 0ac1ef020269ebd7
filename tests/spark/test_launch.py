"""The JVM of a session is handed its settings out of sight, whole, and beside Spark's own defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each would mean something else to Java's properties if it were not escaped.
VALUES = {
    "spark.planted.a": "x9planted = a:b#c!d",
    "spark.planted.b": "x9planted\\slash\\u0041",
    "spark.planted.c": "x9planted é\ttab",
    "spark.driver.memory": "600m",
}
PROGRAM = f"""
import json, os
from holdfast.spark.session import make_session
spark = make_session("launched", "local[1]", {VALUES!r})
java = spark.sparkContext._jvm.java.lang
jvm = spark.sparkContext._gateway.proc.pid
print(json.dumps({{
    "values": {{name: spark.conf.get(name) for name in {sorted(VALUES)!r}}},
    "at_start": {{name: java.System.getProperty(name) for name in {sorted(VALUES)!r}}},
    "defaults": spark.conf.get("spark.planted.default"),
    "mb": java.Runtime.getRuntime().maxMemory() >> 20,
    "words": open(f"/proc/{{jvm}}/cmdline").read(),
    "submit_args": os.environ.get("PYSPARK_SUBMIT_ARGS"),
}}))
spark.stop()
"""


@pytest.mark.timeout(120)
def test_settings_reach_the_jvm_whole_and_stand_in_no_argument_list(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.planted.default from the file\nspark.driver.memory 2g\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["values"] == VALUES
    assert found["at_start"] == VALUES
    assert found["defaults"] == "from the file"
    assert 500 < found["mb"] <= 600
    assert "SparkSubmit" in found["words"]
    assert "planted" not in found["words"]
    assert found["submit_args"] is None
