"""Spark's Python daemon with everything imported that tasks need: the workers that it forks begin at once.

For sessions whose workers die often (`spark.python.daemon.module`). Spark imports after the fork, because some packages
start threads that would be missing then. Of those here, OpenBLAS is told not to, and the allocator inside Arrow starts its
own anew.
"""

from __future__ import annotations

import importlib
import os

from pyspark.daemon import manager

_NEEDED = ("pyspark.worker", "holdfast.spark.bind", "holdfast.spark.epoch", "holdfast.spark.merge")


def main() -> None:
    """Import, then fork workers for as long as Spark asks."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in _NEEDED:
        importlib.import_module(name)
    manager()


if __name__ == "__main__":
    main()
