from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import limits
from holdfast.testing.epochs import write_segments
from unit.sinks.kinds import KINDS, Kind


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the segments of the stream are."""
    return write_segments(tmp_path / "segments")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "out"


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every sink that keeps a record in its target."""
    return request.param


@pytest.fixture(params=[False, True], ids=["directories", "single_file"])
def single_file(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(
    params=[kind for kind in KINDS.values() if kind.name != "appended"], ids=lambda kind: kind.name
)
def stepped(request: pytest.FixtureRequest) -> Kind:
    """For tests that stop at every line: a table that is appended to has no lines of its own."""
    return request.param


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Where a database has no disk to wait for."""
    shared = Path("/dev/shm")
    home = shared / f"holdfast-{tmp_path.name}-{os.getpid()}" if shared.is_dir() else tmp_path / "home"
    home.mkdir()
    yield home
    shutil.rmtree(home)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that go through every line and in which the power stays on: an fsync has no effect there."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which the lock that a sink waits for is held until it gives up."""
    monkeypatch.setattr(limits, "SINK_BUSY_MS_MAX", 1)
