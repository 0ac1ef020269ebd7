"""Keeps out of sight what Spark and Java say whenever they start: banners, and warnings that ask nobody to do anything.

The JVM inherits its stderr from whoever starts it, for life. It is given a pipe to `grep`, which drops the lines of `_NOISE`
and hands on all others to the stderr that was there: errors, and what the flow's own functions print.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LOG_LEVEL = "spark.log.level"

_NOISE = (
    "WARNING: Using incubator modules: ",
    "Using Spark's default log4j profile: ",
    "Setting default log level to ",
    "To adjust logging level use ",
    "Setting Spark log level to ",
    "(NOTE: )?Picked up (_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS)",
    "[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9:]{8} WARN ",
)

_sieves: list[subprocess.Popen[bytes]] = []  # each ends with the JVM that writes to it


@contextmanager
def quietly(conf: Mapping[str, str]) -> Iterator[None]:
    """Start a JVM inside whose noise is not shown, unless the settings ask for a level of logging."""
    grep = shutil.which("grep")
    if LOG_LEVEL in conf or grep is None or not _has_stderr():
        yield
        return
    read, write = os.pipe()
    pattern = f"^({'|'.join(_NOISE)})"
    # In a session of its own: Ctrl-C is not meant for it.
    _sieves.append(
        subprocess.Popen(
            [grep, "--line-buffered", "-avE", pattern],
            stdin=read,
            stdout=2,
            start_new_session=True,
        )
    )
    os.close(read)
    _flush()
    before = os.dup(2)
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        _flush()
        os.dup2(before, 2)
        os.close(before)


def _has_stderr() -> bool:
    """Whether the process has one at all: a service may have closed it."""
    try:
        os.fstat(2)
    except OSError:
        return False
    return True


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
