"""The command line inside the test's own process: for commands that start no Spark."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from holdfast.interfaces.cli import main


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


def holdfast(*words: object) -> Said:
    """Type a command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            return Said(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("the command did not end")
