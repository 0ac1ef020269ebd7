from __future__ import annotations

from pathlib import Path

import pytest

from unit.sinks.feeding import write_segments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the segments of the stream are."""
    return write_segments(tmp_path / "segments")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "out"


@pytest.fixture(params=[False, True], ids=["directories", "single_file"])
def single_file(request: pytest.FixtureRequest) -> bool:
    return request.param
