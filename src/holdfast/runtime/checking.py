"""Binds a flow for real, to see whether it can be: on a local session, and in a ledger that is thrown away."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as t

from holdfast.core.json import Json
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.placement import MAIN
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.binding import bound
from holdfast.runtime.worker import RunOptions, session


def columns_by_stage(plan: FlowPlan, spark: SparkSession | None = None) -> dict[str, list[Json]]:
    """What Spark says of every stage of a flow whose sources have their schemas; an error if it cannot be bound."""
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as scratch:
        ledger = Ledger(Path(scratch))
        try:
            with session(plan, RunOptions(master="local[1]", spark=spark)) as bound_to:
                rt = bound(
                    plan.alone(), Path(scratch), ledger, bound_to, "check", MAIN, tasks=None, hash_bits=64, direct=True
                )  # fmt: skip
                return {name: _columns(stage.output) for name, stage in rt.stages.items()}
        finally:
            ledger.close()


def _columns(schema: t.StructType) -> list[Json]:
    return [{"name": field.name, "type": field.dataType.simpleString()} for field in schema.fields]
