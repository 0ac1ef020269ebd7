"""Spark's Python daemon with everything imported that tasks need: the workers that it forks begin at once.

It is what sessions of ours start in local mode, and the server of `verify` (`spark.python.daemon.module`). Spark's own imports
after the fork, because some packages start threads that would be missing then. Of those here, OpenBLAS is told not to, and the
allocator inside Arrow starts its own anew.

Spark also has its workers import PySpark from an archive, which they compile anew each time. Where that is the archive of the
installed package, the package itself is taken.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_NEEDED = ("pyspark.worker", "holdfast.spark.bind", "holdfast.spark.epoch", "holdfast.spark.merge")

# Where PySpark, installed as a package, has the archives of itself and of what it needs.
_ARCHIVES = Path("pyspark/python/lib")

SETTING = ("spark.python.daemon.module", "holdfast.spark.daemon")


def main() -> None:
    """Import, then fork workers for as long as Spark asks."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path[:] = without_archives(sys.path)
    for name in _NEEDED:
        importlib.import_module(name)
    from pyspark.daemon import manager

    # What is imported stays, and is shared with the workers as long as nobody writes to it.
    gc.collect()
    gc.freeze()
    manager()


def without_archives(path: Sequence[str]) -> list[str]:
    """Where modules are looked for, but for archives of packages that are installed in one of these places."""
    installed = {Path(entry) / _ARCHIVES for entry in path}
    return [entry for entry in path if Path(entry).parent not in installed]


if __name__ == "__main__":
    main()
