"""Which database a URL names."""

from __future__ import annotations

import sqlalchemy as sa
from pyspark.sql import SparkSession

from holdfast.core.extras import package_of
from holdfast.sinks.database import Database
from holdfast.sinks.sqlite import Sqlite


def database_of(url: str, table: str, spark: SparkSession | None) -> Database:
    """The database of a table sink. The session is for those that have tasks write."""
    if sa.make_url(url).get_backend_name() == "sqlite":
        return Sqlite(url, table)
    with package_of("postgres"):
        from holdfast.sinks.postgres import Postgres
    return Postgres(url, table, spark)
