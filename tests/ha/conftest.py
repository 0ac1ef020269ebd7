"""One session that judges, and a stand per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from guard import Guard, Guarded
from holdfast.spark.session import make_session
from stand import Stand


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = make_session("judge", "local[2]", {"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    yield made
    made.close()


@pytest.fixture
def guarded(stand: Stand) -> Iterator[Guarded]:
    made: list[Guard] = []

    def start(policies: str, *options: str, crash: str = "", quiet: bool = True) -> Guard:
        made.append(Guard(stand, policies, *options, crash=crash, quiet=quiet))
        return made[-1]

    yield start
    for guard in made:
        guard.close()
