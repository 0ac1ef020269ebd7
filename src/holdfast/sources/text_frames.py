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
from holdfast.spark.task import ERROR_MARK

FILE, LINE = "__hf_file", "__hf_line"  # where a line of text is from, and the line
_BAD, _ONE = "__hf_malformed", "__hf_one"
_SHOWN = 200

# A closing brace with anything behind it that could begin another value: looked into more closely.
_MORE = r"\}\s*(,\s*[^\"\s]|[^,\]\}\s])"
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
            f.inline(f.array(f.from_json(line, self._with_bad(), self._options()))),
        )
        bad = f.when(f.col(_BAD).isNotNull() | ~f.col(_ONE), f.col(LINE))
        return parsed.select(*self._columns(), f.col(FILE), f.col(_ONE), bad.alias(_BAD))

    def _csv(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        reader = spark.read.schema(self._with_bad()).options(**self._options())
        rows = reader.option("header", self.description.csv.header).csv(list(paths))
        return rows.select(*self._columns(), f.col("_metadata.file_name").alias(FILE), f.col(_BAD))

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
            f.lit(f"source {self.source!r}: a row of "), f.col(FILE), f.lit(" is malformed: "),
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


def _never() -> Column:
    """False, which Spark does not know before it runs."""
    return f.spark_partition_id() < 0


def _needs(df: DataFrame) -> Column:
    """An expression over all columns, for a branch that is never taken."""
    return f.raise_error(f.to_json(f.struct(*(f.col(_quoted(name)) for name in df.columns)))).cast("boolean")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
