"""Commands start quickly: what takes long to import is imported by those that need it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["pandas", "pyspark"])
def test_the_command_line_starts_without(module: str) -> None:
    code = f"import sys, holdfast.interfaces.cli; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
