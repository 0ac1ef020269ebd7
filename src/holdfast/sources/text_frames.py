"""Rows of JSON and CSV files on Spark, well-formed ones and the others apart.

Whether a row is malformed must not depend on who asks. Spark parses only the columns that a query needs, and
pushes filters into the parser, so a bad value in another column, or in a row that a filter drops, would go unseen.
Every frame here therefore has a filter that needs all columns and that the optimiser may not move: it is not
deterministic by name (`spark_partition_id`), though its outcome is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.flow.endpoints import FilesSource
from holdfast.sources.decimals import (
    any_inexact,
    as_text,
    may_be_inexact,
    number,
    scales,
    with_numbers_in_quotes,
)
from holdfast.spark.task import ERROR_MARK

FILE, LINE = "__hf_file", "__hf_line"  # where a line of text is from, and the line
_BAD, _ONE, _TEXT = "__hf_malformed", "__hf_one", "__hf_text"
_SHOWN = 200

# A closing brace with anything behind it that could begin another value: looked into more closely.
_MORE = r"\}\s*(,\s*[^\"\s]|[^,\]\}\s])"
TABLE_HINT = "Nothing of this epoch was planned. Mend the file and run again: it is then read anew."
_HINT = (
    "Nothing of this epoch was committed. Mend the file and run again: it is then read anew."
    ' Or set on_error="quarantine" on the source, to go on without such rows and keep them.'
)


@dataclass(frozen=True)
class TextFrames:
    """The rows of text files of one source."""

    source: str
    description: FilesSource
    schema: t.StructType
    hint: str = _HINT
    carried: tuple[str, ...] = ()  # further columns that lines have, which come along as they are
    kind: str = "source"  # what has the files: a source or a table

    def rows(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The well-formed rows; others stop the job with an error of ours, or are left to the quarantine."""
        return self.kept(self._parsed(spark, paths))

    def malformed(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The other rows: the file, the line, and what is wrong with it."""
        return self.aside(self._parsed(spark, paths))

    def kept(self, parsed: DataFrame) -> DataFrame:
        """The well-formed ones of parsed rows."""
        others = f.lit(False) if self.description.quarantines else self._raised()
        kept = f.when(f.col(_BAD).isNull(), f.lit(True)).when(_never(), _needs(parsed)).otherwise(others)
        return parsed.where(kept).select(*self._columns())

    def aside(self, parsed: DataFrame) -> DataFrame:
        """The malformed ones, as QUARANTINED has them."""
        others = f.when(f.col(_BAD).isNotNull(), f.lit(True)).when(_never(), _needs(parsed)).otherwise(False)
        return parsed.where(others).select(
            f.col(FILE).alias("file"), f.col(_BAD).alias("row"), self._reason().alias("reason")
        )

    def _parsed(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """All rows: the declared columns, the file, and the line as it is if it is malformed."""
        return self._json(spark, paths) if self.description.format == "json" else self._csv(spark, paths)

    def _json(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        lines = spark.read.text(list(paths)).where(f.col("value").rlike(r"\S"))
        return self.json(lines.select(f.col("_metadata.file_name").alias(FILE), f.col("value").alias(LINE)))

    def json(self, lines: DataFrame) -> DataFrame:
        """Spark takes the first of several values in a line and drops the others; here that line is malformed."""
        line = f.col(LINE)
        whole = f.json_array_length(f.concat(f.lit("["), line, f.lit("]"))).eqNullSafe(1)
        one = line.rlike(r"^\s*\{") & (~line.rlike(_MORE) | whole)
        parsed = lines.select(
            *(f.col(name) for name in lines.columns),
            one.alias(_ONE),
            *self._text_of_decimals(line),
            f.inline(f.array(f.from_json(line, self._with_bad(), self._options()))),
        )
        bad = f.when(f.col(_BAD).isNotNull() | ~f.col(_ONE) | self._any_inexact(), f.col(LINE))
        return parsed.select(*self._exact_json(), f.col(FILE), f.col(_ONE), bad.alias(_BAD))

    def _decimals(self) -> t.StructType:
        return t.StructType([field for field in self.schema.fields if scales(field.dataType)])

    def _text_of_decimals(self, line: Column) -> list[Column]:
        """Where a line may have a decimal of too many places, the columns that hold decimals, with their text."""
        decimals = self._decimals()
        if not decimals.fields:
            return []
        text = t.StructType([*_text_fields(decimals), t.StructField(_BAD, t.StringType())])
        read = f.from_json(with_numbers_in_quotes(line), text, self._options())
        return [f.when(may_be_inexact(line, decimals), read).alias(_TEXT)]

    def _any_inexact(self) -> Column:
        decimals = self._decimals()
        return any_inexact(f.col(_TEXT), decimals) if decimals.fields else f.lit(False)

    def _exact_json(self) -> list[Column]:
        """All columns, null where Spark has rounded."""
        decimals = {
            field.name: f.when(
                ~any_inexact(f.col(_TEXT).getField(field.name), field.dataType), f.col(_quoted(field.name))
            ).alias(field.name)
            for field in self._decimals().fields
        }
        return [decimals.get(name, f.col(_quoted(name))) for name in (*self.schema.names, *self.carried)]

    def _csv(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        text = t.StructType([*_text_fields(self.schema), t.StructField(_BAD, t.StringType())])
        reader = spark.read.schema(text).options(**self._options())
        rows = reader.option("header", self.description.csv.header).csv(list(paths))
        exact = {
            field.name: number(f.col(_quoted(field.name)), field.dataType)
            for field in self._decimals().fields
        }
        wrong = f.lit(False)
        for name, value in exact.items():
            wrong = wrong | (f.col(_quoted(name)).isNotNull() & value.isNull())
        # Spark keeps the line of a row that it finds malformed itself; where only we do, the row is written anew.
        anew = f.to_csv(f.struct(*self._columns()), self._options())
        bad = f.coalesce(f.col(_BAD), f.when(wrong, anew))
        columns = [exact.get(name, f.col(_quoted(name))).alias(name) for name in self.schema.names]
        return rows.select(*columns, f.col("_metadata.file_name").alias(FILE), bad.alias(_BAD))

    def _with_bad(self) -> t.StructType:
        return t.StructType([*self.schema.fields, t.StructField(_BAD, t.StringType())])

    def _options(self) -> dict[str, str]:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
        if self.description.format == "csv":
            csv = self.description.csv
            options |= {"sep": csv.separator, "quote": '"', "escape": '"', "multiLine": str(csv.multiline)}
        return options

    def _columns(self) -> list[Column]:
        return [f.col(_quoted(name)) for name in (*self.schema.names, *self.carried)]

    def _raised(self) -> Column:
        message = f.concat(
            f.lit(f"{self.kind} {self.source!r}: a row of "), f.col(FILE), f.lit(" is malformed: "),
            f.left(self._reason(), f.lit(_SHOWN)), f.lit(". The row: "), f.left(f.col(_BAD), f.lit(_SHOWN)),
        )  # fmt: skip
        facts = f.struct(
            f.lit("InputError").alias("kind"), message.alias("message"), f.lit(self.hint).alias("hint")
        )
        told = f.concat(f.lit(ERROR_MARK), f.to_json(facts), f.lit(f":{ERROR_MARK}"))
        return f.raise_error(told).cast("boolean")

    def _reason(self) -> Column:
        """What is wrong with a row, found by reading it once more with every column as text."""
        text = t.StructType([t.StructField(name, t.StringType()) for name in self._with_bad().names])
        if self.description.format == "json":
            again = f.from_json(f.col(_BAD), text, self._options())
            shapeless = f.when(again[_BAD].isNotNull(), f.lit("it is no JSON object"))
            shapeless = shapeless.when(~f.col(_ONE), f.lit("it is not exactly one JSON object"))
        else:
            ddl = ", ".join(f"{_quoted(name)} string" for name in text.names)
            again = f.from_csv(f.col(_BAD), ddl, self._options())
            number = len(self.schema.names)
            shapeless = f.when(again[_BAD].isNotNull(), f.lit(f"it does not have {number} columns"))
        misfits = f.concat_ws("; ", *(self._misfit(field, again) for field in self.schema.fields))
        named = shapeless.when(misfits != "", misfits)
        return named.otherwise(f.lit("a value does not fit the type of its column"))

    def _misfit(self, field: t.StructField, again: Column) -> Column:
        value, kind = again[field.name], field.dataType.simpleString()
        wrong = value.isNotNull() & f.col(_quoted(field.name)).isNull()
        told = f.concat(f.lit(f"{field.name} is no {kind}: "), f.left(value, f.lit(_SHOWN)))
        return f.when(wrong, told)


def _text_fields(schema: t.StructType) -> list[t.StructField]:
    return [t.StructField(field.name, as_text(field.dataType)) for field in schema.fields]


def _never() -> Column:
    """False, which Spark does not know before it runs."""
    return f.spark_partition_id() < 0


def _needs(df: DataFrame) -> Column:
    """An expression over all columns, for a branch that is never taken."""
    return f.raise_error(f.to_json(f.struct(*(f.col(_quoted(name)) for name in df.columns)))).cast("boolean")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
