"""Practice is for when nobody else practises."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.rehearsal import turn


def test_standbys_practise_one_at_a_time(tmp_path: Path) -> None:
    with turn(tmp_path) as first, turn(tmp_path) as second:
        assert (first, second) == (True, False)
    with turn(tmp_path) as again:
        assert again
