"""Forked processes, and what is known of those that were killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.verify.actor import Actor


def test_the_result_of_a_process_comes_back(tmp_path: Path) -> None:
    ending = Actor(lambda: {"rows": 3}, tmp_path / "log").wait()
    assert (ending.status, ending.returned()) == (0, {"rows": 3})


def test_a_process_that_is_killed_while_it_writes_its_result_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path.write_bytes

    def torn(path: Path, data: bytes) -> int:
        whole(path, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    monkeypatch.setattr(Path, "write_bytes", torn)
    ending = Actor(lambda: "done", tmp_path / "log").wait()
    assert ending.killed
    assert (ending.value, ending.error) == (None, None)
