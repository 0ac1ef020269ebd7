"""What every test stands on: one Python for Spark's workers, seeded property tests, a work directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import servers

# Spark starts `python3` from the path for its workers unless it is told otherwise.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

# Most JVMs of tests live for a minute: compiling for the long run, and loading classes one by one, would be half of their work.
_ARCHIVE = Path(sys.prefix) / "spark.jsa"  # written by scripts/class_archive
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
os.environ.setdefault("SPARK_LAUNCHER_OPTS", _OPTIONS)
if _ARCHIVE.exists():
    _OPTIONS += f' "-XX:SharedArchiveFile={_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'
os.environ.setdefault("SPARK_SUBMIT_OPTS", _OPTIONS)

# A red run must be red again: the examples follow from the test's name, and the blob repeats one by hand.
# HYPOTHESIS_PROFILE=explore searches with fresh seeds and more examples.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work directory that does not exist yet, as on a flow's first run."""
    return tmp_path / "work"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in servers.skipped(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)
