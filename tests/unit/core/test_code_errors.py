"""Tracebacks: whose they are, and what of them a user sees."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.core.code_errors import is_of_their_code, raised

SPARK = "/opt/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py"
TASK = str(Path(holdfast.__file__).parent / "spark" / "task.py")
ELSEWHERE = "/mnt/env/lib/python3.12/site-packages/holdfast/spark/task.py"
THEIRS = "/data/holdfast/flows/orders.py"


def text(error: str, *files: str) -> str:
    frames = "".join(f'  File "{file}", line 7, in f\n    g(x)\n    ^^^^\n' for file in files)
    return (
        f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
        f"{frames}{error}\n SQLSTATE: 38000\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat x.y(Z.scala:1)"
    )


@pytest.mark.parametrize(
    ("files", "error", "theirs"),
    [
        ((SPARK, THEIRS), "ZeroDivisionError: division by zero", True),
        ((SPARK, THEIRS), "ConnectionError: the service is away", True),
        ((SPARK, THEIRS), "MemoryError", False),
        ((SPARK,), "ModuleNotFoundError: No module named 'helpers'", True),
        ((SPARK,), "OSError: [Errno 28] No space left on device", False),
        ((SPARK,), "EOFError", False),
        ((SPARK, TASK), "OSError: [Errno 28] No space left on device", False),
        ((SPARK, ELSEWHERE), "IndexError: list index out of range", False),
        ((), "ZeroDivisionError: division by zero", False),
    ],
)
def test_only_what_their_code_raised_is_theirs(files: tuple[str, ...], error: str, theirs: bool) -> None:
    assert is_of_their_code(text(error, *files)) is theirs


def test_a_user_sees_their_own_frames_and_the_last_line_of_theirs() -> None:
    numpy = "/opt/lib/python3.11/site-packages/numpy/core.py"
    error = raised(text("ValueError: no\nsuch thing", SPARK, THEIRS, numpy), "the code", operation="task")
    assert error.message == "the code raised ValueError: no"
    assert error.line == f"{THEIRS}:7"
    assert error.trace == (
        "Traceback (most recent call last):\n"
        f'  File "{THEIRS}", line 7, in f\n    g(x)\n    ^^^^\n'
        f'  File "{numpy}", line 7, in f\n    g(x)\n    ^^^^\n'
        "ValueError: no\nsuch thing"
    )
