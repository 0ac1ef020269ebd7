"""Which version of its tables an epoch is enriched with: decided once, when it is planned.

Invariants: a version is a copy in the work directory, durable before a plan names it, so that every attempt and every replay
of the plan reads the same rows, whatever has become of the files. A key stands in it once, for every step that looks it up.
A plan takes over the version of the plan before it, until a look finds other rows. A run along a script takes the
versions of the run that was recorded, and looks at nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from holdfast.core import crashpoints, limits
from holdfast.core.errors import HoldfastError
from holdfast.core.json import Json
from holdfast.flow.enrichment import Enrich
from holdfast.flow.prefixes import functions
from holdfast.ledger import epochs
from holdfast.ledger.epochs import StageRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.sources.table_files import Listing, too_large
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.bind import BoundStage
from holdfast.spark.enriching import check_unique
from holdfast.spark.epoch import recognised
from holdfast.storage.checksums import fault_at_first
from holdfast.storage.shipper import bring_over
from holdfast.storage.table_copies import version_of, write_copy


@dataclass(frozen=True)
class _Look:
    """The last look at a table: when, at which files, and which version they were."""

    at: float
    listing: Listing
    version: str


class TableVersions:
    """The versions that one stage's epochs are planned with."""

    def __init__(self, rt: Runtime, stage: BoundStage) -> None:
        self._rt = rt
        self._stage = stage
        self._looks: dict[str, _Look] = {}
        self._carried: set[str] = set()

    def are_kept(self, plan: EpochPlan) -> bool:
        """Whether an open plan can be run as it stands: the copies that it names are all there and whole."""
        return all(self._is_kept(plan.tables.get(name)) for name in self._stage.spec.tables)

    def planned(self, row: StageRow, plan: EpochPlan) -> EpochPlan:
        """The plan with the versions of its tables."""
        if not self._stage.spec.tables:
            return plan
        try:
            versions = self._recorded(plan) or self._found(row)
        except HoldfastError as error:
            raise error.at(stage=self._stage.name, epoch=row.head + 1) from error.__cause__
        self._carry({str(file["path"]) for file in versions.values()})
        crashpoints.reach("table.after_copy")
        return plan.with_tables(versions)

    def _carry(self, paths: set[str]) -> None:
        """Take copies as far as the stage's files go, each once in a process: the flow may have another policy by now."""
        if paths - self._carried:
            self._rt.route(self._stage.name).carry(self._rt.root, sorted(paths - self._carried))
            self._carried = paths

    def _recorded(self, plan: EpochPlan) -> Mapping[str, Json]:
        """The versions of the run that is followed, brought over from there; none if nobody is followed."""
        recorded = self._rt.script.versions
        if recorded is None:
            return {}
        versions = plan.tables or recorded.newest.get(self._stage.name, {})
        missed = [file for file in versions.values() if not self._is_kept(file)]
        bring_over(self._rt.root, recorded.root, missed)
        return versions

    def _found(self, row: StageRow) -> Mapping[str, Json]:
        before = self._before(row)
        names = self._stage.spec.tables
        return {name: self._version(name, row.head + 1, before.get(name)) for name in names}

    def _before(self, row: StageRow) -> Mapping[str, Json]:
        """The versions of the plan that is replaced, or of the last epoch."""
        with self._rt.ledger.read() as tx:
            body = epochs.open_plan(tx, row) or epochs.plan_of(tx, row, row.head) or {}
        tables: Mapping[str, Json] = body.get("tables", {})
        return {name: file for name, file in tables.items() if self._is_kept(file)}

    def _version(self, name: str, epoch: int, before: Json | None) -> Json:
        last, refresh_us = self._looks.get(name), self._rt.plan.tables[name].refresh_us
        if before and last:
            due = refresh_us is not None and time.monotonic() - last.at >= refresh_us / 1e6
            if not due:
                return before
            if last.version == before["version"] and self._rt.tables[name].look() == last.listing:
                self._looks[name] = _Look(time.monotonic(), last.listing, last.version)
                return before
        return self._read(name, epoch, before)

    def _read(self, name: str, epoch: int, before: Json | None) -> Json:
        """The version that the files are now: the one before, if they hold the same rows, or a new copy."""
        at = time.monotonic()
        rows, listing = self._rt.tables[name].read(self._rt.spark, lambda df: self._collected(name, df))
        for step in self._steps(name):
            check_unique(step, self._rt.spark.createDataFrame(rows))
        data = _written(rows)
        if len(data) > limits.TABLE_BYTES_MAX:
            raise too_large(name, len(data), limits.TABLE_BYTES_MAX, "bytes")
        self._looks[name] = _Look(at, listing, version_of(data))
        if before and before["version"] == version_of(data):
            return before
        return write_copy(self._rt.root, self._stage.name, name, epoch, rows.num_rows, data)

    def _collected(self, name: str, df: DataFrame) -> pa.Table:
        """All rows, in an order that is the same for the same rows."""
        plain = [field.name for field in df.schema.fields if isinstance(field.dataType, t.AtomicType)]
        ordered = df.coalesce(1).sortWithinPartitions(*(f"`{column}`" for column in plain))
        spark = self._rt.spark
        with self._rt.tagged(self._stage.name, f"table-{name}") as tag:
            spark.addTag(tag)
            try:
                number = df.count()
                if number > limits.TABLE_ROWS_MAX:
                    raise too_large(name, number, limits.TABLE_ROWS_MAX, "rows")
                return ordered.toArrow().cast(arrow_schema(self._stage.name, df.schema))
            except HoldfastError:
                raise
            except Exception as error:
                # Spark's own errors, and what the gateway or the connection under them raises.
                raise recognised(error) from error
            finally:
                spark.removeTag(tag)

    def _steps(self, name: str) -> list[Enrich]:
        """The steps that look keys up in a table, one for each set of keys."""
        steps = [step for prefix in self._stage.spec.sides for step in functions(prefix)]
        found = [step for step in steps if isinstance(step, Enrich) and step.table == name]
        return list({tuple(theirs for _, theirs in step.on): step for step in found}.values())

    def _is_kept(self, file: Json | None) -> bool:
        return file is not None and fault_of_copy(self._rt, self._stage.name, file) is None


def fault_of_copy(rt: Runtime, stage: str, file: Json) -> str | None:
    """What is wrong with the copy of a version, None if nothing. One that is lost here is brought back from a mirror."""
    wrong = fault_at_first(rt.root, file)
    if wrong and any(bring_over(rt.root, mirror, [file]) for mirror in rt.route(stage).mirrors.values()):
        return None
    return wrong


def _written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows.combine_chunks(), sink, compression="snappy", write_statistics=False)
    return bytes(sink.getvalue())
