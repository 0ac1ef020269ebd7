"""Delta tables as targets: the contract of sinks, and the races that only a lake has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.flow.lake import delta
from holdfast.sinks.lake import lake_rows, lake_sink
from holdfast.testing import SinkSuite, Target


class TestDeltaSink(SinkSuite):
    tears = 6
    names = ("select", "MixedCase", "Ünïcödé")

    def target(self, schema: pa.Schema, place: Path) -> Target:
        description = delta(str(place))
        return Target(lambda: lake_sink(description, schema), lambda: lake_rows(description))
