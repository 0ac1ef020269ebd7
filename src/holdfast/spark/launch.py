"""Starts the JVM of a session so that no setting stands in its argument list, which everybody on the machine may read.

pyspark hands every setting to spark-submit as an argument. Here they are handed over as a file of properties without a name
(core/secrets.py), which the shell, Spark's launcher and the JVM inherit and open one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from holdfast.core.secrets import unnamed_file

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"} | {c: f"\\{c}" for c in " :=#!"}
)


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it has one: the session that is made in it finds these settings there."""
    if SparkContext._gateway is not None:
        return
    text = "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
    with unnamed_file(text) as fd, _submitted_with(f"/proc/self/fd/{fd}"):
        gateway = launch_gateway(popen_kwargs={"pass_fds": [fd]})
        SparkContext._ensure_initialized(gateway=gateway)


@contextmanager
def _submitted_with(file: str) -> Iterator[None]:
    """Have spark-submit read a file, and its own defaults, which without the second option it would leave out."""
    before = os.environ.get(_SUBMIT)
    os.environ[_SUBMIT] = f"--properties-file {file} --load-spark-defaults {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SUBMIT]
        else:
            os.environ[_SUBMIT] = before


def _escaped(text: str) -> str:
    """As Java reads properties; Spark opens the file as UTF-8."""
    return text.translate(_ESCAPES)
