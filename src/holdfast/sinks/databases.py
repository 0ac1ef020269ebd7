"""Which database a URL names."""

from __future__ import annotations

import sqlalchemy as sa
from pyspark.sql import SparkSession

from holdfast.core.errors import PlanError
from holdfast.sinks.database import Database
from holdfast.sinks.sqlite import Sqlite


def database_of(url: str, table: str, spark: SparkSession | None) -> Database:
    """The database of a table sink. The session is for those that have tasks write."""
    if sa.make_url(url).get_backend_name() == "sqlite":
        return Sqlite(url, table)
    try:
        from holdfast.sinks.postgres import Postgres
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise PlanError(
            f"a table of PostgreSQL needs the package {error.name}",
            operation="plan",
            hint="Install it: pip install 'holdfast[postgres]'.",
        ) from error
    return Postgres(url, table, spark)
