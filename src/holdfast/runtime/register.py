"""Makes `format("holdfast")` known to a Spark session, and forgets the readers that it has named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.errors import LedgerError
from holdfast.ledger import readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session read flows: `spark.read.format("holdfast").option("channel", STAGE).load(WORK_DIR)`.

    - `spark`: the session.
    """
    from holdfast.runtime.data_source import HoldfastSource

    spark.dataSource.register(HoldfastSource)


def forget_reader(work_dir: str | Path, name: str) -> None:
    """Keep nothing more for a reader of a channel.

    - `work_dir`: of the flow.
    - `name`: what the reader was named with the option `reader`.

    Raises `hf.LedgerError` if no reader of that name is known, or there is no flow.
    """
    with readers.writing(Path(work_dir)) as tx:
        forgotten = readers.forget(tx, name)
    if not forgotten:
        raise LedgerError(f"no reader named {name!r} is known here", operation="forget reader")
