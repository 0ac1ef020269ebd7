"""The programs of the README and the tutorial pass the type checker that examples pass, in `make lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pages import blocks
from walk import PROGRAM, TUTORIAL

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(TUTORIAL.glob("*.md"))]


def objections(home: Path, programs: dict[str, str]) -> list[str]:
    """What mypy says, with the settings and the cache of the checkout."""
    for name, code in programs.items():
        (home / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *(str(home / name) for name in programs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_are_type_checked(page: Path, tmp_path: Path) -> None:
    named = dict(PROGRAM.findall(page.read_text()))
    programs = named or {f"block_{number}.py": code for number, code in enumerate(blocks(page, "python"))}
    assert programs
    assert objections(tmp_path, programs) == []


def test_a_program_with_a_mistake_is_found(tmp_path: Path) -> None:
    code = 'import holdfast as hf\n\nflow = hf.Flow("shop", survive="power")\nflow.source("in").too("out/")\n'
    said = "\n".join(objections(tmp_path, {"mistaken.py": code}))
    assert "survive" in said
    assert "too" in said
