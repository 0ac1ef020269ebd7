"""A directory of files, each read once, in the order of their modification.

A file is an item; its name is its identity; its length and modification time are recorded when it is
discovered, and it is never read if they have changed since. As long as no committed epoch has read it, a
person may mend it: the next run takes it as it finds it. A file that cannot be read at all stops the flow, or is
recorded as refused, with the reason, and has no rows from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core.errors import InputError, PlanError
from holdfast.core.json import Json
from holdfast.flow.endpoints import FilesSource
from holdfast.ledger.inputs import Item
from holdfast.sources.contract import REFUSED, Limits, Source, Taken
from holdfast.sources.fitness import ARROW, EITHER, Facts, Unfit
from holdfast.sources.listing import listed
from holdfast.sources.parquet_files import opened, parquet_facts, signature
from holdfast.sources.text_files import csv_facts, json_facts
from holdfast.sources.text_frames import TABLE_HINT, TextFrames
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.bind import QUARANTINED
from holdfast.spark.converting import converted_files
from holdfast.spark.schemas import parse_schema

# In the body of an item: the digest of the schema that it was judged by, and who can read it so.
READ_AS, BY = "read_as", "by"

# What has the files, if not a source: it is read as a whole, and sets nothing aside.
TABLE = "table"
_OR_ASIDE = ' Or set on_error="quarantine" on the source, to set such files aside.'


class Files(Source):
    """The files of one directory."""

    def __init__(
        self,
        name: str,
        description: FilesSource,
        schema: t.StructType | None = None,
        *,
        kind: str = "source",
    ) -> None:
        self._name = name
        self._called = f"{kind} {name!r}"
        self._or_aside = "" if kind == TABLE else _OR_ASIDE
        self._description = description
        self._directory = Path(description.path).resolve()
        self._schema = schema or parse_schema(self._called, description.schema or "")
        self._declared = signature(arrow_schema(name, self._schema))
        frames = TextFrames(name, description, self._schema)
        self._frames = replace(frames, kind=TABLE, hint=TABLE_HINT) if kind == TABLE else frames
        if description.format == "csv":
            _check_flat(self._called, self._schema)

    def schema(self) -> t.StructType:
        """The declared columns."""
        return self._schema

    def next(self, after: Taken, most: Limits) -> list[Item]:
        """New files, oldest first; files of one instant by name."""
        found = listed(self._called, self._directory, after.known)
        items = (self._item(name, size, mtime_ns) for mtime_ns, name, size in found[: most.items])
        return [item for item in items if item is not None]

    def as_found(self, item: Item) -> Item:
        """The file as it is now, judged by the schema as it is now; one that is gone is missed when it is read."""
        try:
            stat = (self._directory / item.identity).stat()
        except OSError:
            return item
        judged_so = item.body.get(READ_AS, self._declared) == self._declared
        if judged_so and _stamp(item) == (stat.st_size, stat.st_mtime_ns):
            return item
        return self._item(item.identity, stat.st_size, stat.st_mtime_ns) or item

    def faults(
        self, stamps: Sequence[tuple[int, str, int]], items: Sequence[Item]
    ) -> list[tuple[str, InputError]]:
        """Files that would stop the flow, by name: new ones, and items as they are now."""
        looks: list[tuple[str, Callable[[], Item | None]]] = []
        looks += [(name, partial(self._item, name, size, mtime_ns)) for mtime_ns, name, size in stamps]
        looks += [(item.identity, partial(self.as_found, item)) for item in items]
        found = []
        for name, look in looks:
            try:
                look()
            except InputError as error:
                found.append((name, error))
        return found

    def checked(self, items: Sequence[Item]) -> list[Path]:
        """The files of items, found to be what they were when they were discovered, without the refused ones."""
        return [self._checked(item) for item in items if REFUSED not in item.body]

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """Read files as they were when they were discovered."""
        if self._description.format == "parquet":
            return self._read_parquet(spark, items)
        paths = [unglobbed(str(path)) for path in self.checked(items)]
        return self._frames.rows(spark, paths) if paths else spark.createDataFrame([], self._schema)

    def _read_parquet(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """Spark reads what it can; what only Arrow can convert is read by tasks of ours."""
        only_arrow = [item for item in items if item.body.get(BY) == ARROW]
        plain = self.checked([item for item in items if item.body.get(BY) != ARROW])
        frames = []
        if plain:
            frames.append(spark.read.schema(self._schema).parquet(*(unglobbed(str(path)) for path in plain)))
        if only_arrow:
            paths = [str(path) for path in self.checked(only_arrow)]
            frames.append(converted_files(spark, paths, self._schema, arrow_schema(self._name, self._schema)))
        return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], self._schema)

    def quarantined(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        """The malformed rows of files, and a row without text for every file that was refused as a whole."""
        refused = [item for item in items if REFUSED in item.body]
        files = pa.table(
            {
                "file": pa.array([item.identity for item in refused], pa.string()),
                "row": pa.nulls(len(refused), pa.string()),
                "reason": pa.array([item.body[REFUSED] for item in refused], pa.string()),
            }
        )
        found = spark.createDataFrame(files) if refused else spark.createDataFrame([], QUARANTINED)
        paths = [unglobbed(str(path)) for path in self.checked(items)]
        if not paths or self._description.format == "parquet":
            return found
        return found.unionByName(self._frames.malformed(spark, paths))

    def direct(self, items: Sequence[Item]) -> bool:
        """As far as their footers said when they were discovered; refused files have no rows to read."""
        return all(
            item.body.get(BY) in (ARROW, EITHER)
            or item.body.get("columns") == self._declared
            or REFUSED in item.body
            for item in items
        )

    def epoch_limits(self) -> tuple[int | None, int | None]:
        """As the flow says."""
        return self._description.max_files_per_epoch, self._description.max_rows_per_epoch

    def _item(self, name: str, size: int, mtime_ns: int) -> Item | None:
        """The item of a file; None if the file is gone by now."""
        body: Json = {"bytes": size, "mtime_ns": mtime_ns, READ_AS: self._declared}
        try:
            facts = self._facts(name)
            told = {"columns": facts.columns, BY: facts.by}
            return Item(
                name, facts.rows, size, {**body, **{key: value for key, value in told.items() if value}}
            )
        except FileNotFoundError:
            return None
        except Unfit as unfit:
            if self._description.quarantines:
                return Item(name, None, size, {**body, REFUSED: unfit.reason})
            raise InputError(
                f"{self._called} cannot read {self._directory / name}: {unfit.reason}",
                operation="discover",
                hint=f"{unfit.hint}{self._or_aside}",
            ) from unfit

    def _facts(self, name: str) -> Facts:
        description, path = self._description, self._directory / name
        try:
            if description.format == "parquet":
                with opened(path) as parquet:
                    return parquet_facts(parquet, self._schema)
            with path.open("rb") as text:
                if description.format == "json":
                    return json_facts(text, name)
                return csv_facts(text, name, self._schema, description.csv)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(
                f"{self._called} cannot open {path}: {os.strerror(error.errno) if error.errno else error}",
                operation="discover",
                hint="Mend its permissions, or remove it.",
            ) from error

    def _checked(self, item: Item) -> Path:
        path = self._directory / item.identity
        try:
            stat = path.stat()
            now = (stat.st_size, stat.st_mtime_ns)
        except OSError:
            now = None
        if now != _stamp(item):
            what = "is gone" if now is None else "has changed since it was discovered"
            raise InputError(
                f"{self._called}: {path} {what}, and it is needed",
                operation="read",
                hint="Put the file back as it was, with its modification time. If no epoch that was committed has"
                " read it yet, it is enough that it is there: the next run takes it as it finds it.",
            )
        return path


def _stamp(item: Item) -> tuple[int, int]:
    return item.body["bytes"], item.body["mtime_ns"]


def _check_flat(called: str, schema: t.StructType) -> None:
    nested = [
        field.name
        for field in schema.fields
        if isinstance(field.dataType, t.ArrayType | t.MapType | t.StructType | t.VariantType | t.BinaryType)
    ]
    if nested:
        raise PlanError(
            f"a CSV file cannot hold the column {nested[0]!r} of {called}: it is no plain value",
            operation="bind",
            hint='Declare it as string and parse it in a transform, or use format="json".',
        )


def unglobbed(path: str) -> str:
    """Spark globs paths: characters with a meaning there are escaped."""
    return "".join(f"\\{c}" if c in "[]{}*?\\" else c for c in path)
