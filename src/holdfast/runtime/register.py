"""Makes `format("holdfast")` known to a Spark session, and forgets the readers that it has named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.errors import LedgerError
from holdfast.ledger import readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session read flows: `spark.read.format("holdfast").option("channel", STAGE).load(WORK_DIR)`."""
    from holdfast.runtime.data_source import HoldfastSource

    spark.dataSource.register(HoldfastSource)


def forget_reader(work_dir: str | Path, name: str) -> None:
    """Keep nothing more for a reader that was named with option `reader`."""
    with readers.writing(Path(work_dir)) as tx:
        forgotten = readers.forget(tx, name)
    if not forgotten:
        raise LedgerError(f"no reader named {name!r} is known here", operation="forget reader")
