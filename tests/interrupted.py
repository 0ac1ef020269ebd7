"""Runs in this process that stop in the middle, and leave their stages as a worker that was killed does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf


class Enough(Exception):
    """What was to be seen has been seen."""


def run_until(flow: hf.Flow, work: Path, spark: SparkSession, enough: Callable[[], bool]) -> None:
    """Run for ever, and stop with an error as soon as it is enough: `until_idle` would wait for a snapshot."""

    def observe(progress: object) -> None:
        if enough():
            raise Enough

    with pytest.raises(Enough):
        flow.run(work, spark=spark, observe=observe)


def orphan(work: Path) -> None:
    """As if the worker had been killed."""
    with closing(sqlite3.connect(work / "ledger.db")) as ledger, ledger:
        ledger.execute("update stages set orphaned = 1")
