"""Iceberg tables as targets: the contract of sinks, and the races that only a lake has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.flow.lake import IcebergSink, iceberg
from holdfast.sinks.lake import lake_rows, lake_sink
from holdfast.testing import SinkSuite, Target


def described(place: Path, **more: str) -> IcebergSink:
    place.mkdir(parents=True, exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"{place}/warehouse"}
    return iceberg(catalog, "shop.orders", **more)


class TestIcebergSink(SinkSuite):
    tears = 6

    def target(self, schema: pa.Schema, place: Path) -> Target:
        description = described(place)
        return Target(lambda: lake_sink(description, schema), lambda: lake_rows(description))
