"""The code that a page of the documentation shows, and a shell that runs it as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


# Names the directory of programs of another environment, for whoever wants to know whether pages hold there too.
PROGRAMS = "HOLDFAST_TEST_PROGRAMS"


def shell(home: Path, command: str) -> str:
    programs = os.environ.get(PROGRAMS, str(Path(sys.executable).parent))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-m", "-c", command],
        cwd=home,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
