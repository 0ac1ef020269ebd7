"""The Spark job of one epoch: read the planned ranges, apply the stage, collect the manifest rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.core import errors
from holdfast.core.code_errors import is_of_their_code, raised
from holdfast.core.errors import CodeError, FlowError, HoldfastError, InputError
from holdfast.core.json import Json
from holdfast.flow.prefixes import Input
from holdfast.spark.bind import BoundStage, event_rows
from holdfast.spark.direct import DirectFile
from holdfast.spark.keys import hash_sql
from holdfast.spark.operators.contract import DirectOperator
from holdfast.spark.task import (
    ERROR_MARK,
    RESULT,
    ROW_HASH,
    ClosingTask,
    DirectTask,
    StatefulTask,
    StatelessTask,
    TaskPlan,
)
from holdfast.state.run import LostFileError, lost_path

# What a job reads: DataFrames by input, or the files that its tasks read themselves.
Reads = Mapping[Input, DataFrame] | Sequence[DirectFile]

# Classes of SQLSTATE for values that an expression cannot take: the same rows meet them again.
_OF_VALUES = ("21", "22", "P0")
_VALUES_HINT = (
    "Nothing of the epoch was committed. To try again will not help until the expression takes such rows (try_divide,"
    " try_cast, a filter before it), or the rows are mended; the next run goes on from here."
)


class SparkJobError(InputError):
    """A job that failed for a reason that is not ours to know; it may go through when tried again."""


@dataclass(frozen=True)
class Outcome:
    """What an attempt did: the parts of a manifest, before anything names them."""

    runs: list[Json]
    segments: dict[str, list[Json]]
    digests: Json  # what a replay must find again
    keys: int
    keys_added: int
    operator_ms: float
    counts: dict[str, int]  # of rows that did not go the usual way, by reason
    newest_us: list[int | None]  # the largest event time, by feed
    holds: list[tuple[int, int]]  # (bucket, the smallest event time of a row held back in it)
    labels: dict[str, list[list[str]]] = field(
        default_factory=dict
    )  # by port, the labels of each segment that carries any
    closing: list[str] = field(default_factory=list)  # labels that a source has closed by what it read
    held: dict[str, int] = field(default_factory=dict)  # by label of rows held back, their last bucket

    @property
    def layer(self) -> Json:
        """The layer's row in the ledger."""
        return {"rows": sum_of(self.runs, "rows"), "bytes": sum_of(self.runs, "bytes"), "runs": self.runs}

    @property
    def segment_rows(self) -> dict[str, Json]:
        """The segments' rows in the ledger, by port."""
        return {
            port: {"rows": sum_of(files, "rows"), "bytes": sum_of(files, "bytes"), "files": files}
            for port, files in self.segments.items()
            if files
        }


def run_epoch(spark: SparkSession, stage: BoundStage, reads: Reads, plan: TaskPlan, tag: str) -> Outcome:
    """Run the job of one attempt, under a tag by which it can be interrupted; no inputs, nothing to read."""
    reports: list[Json] = []
    if reads:
        job = _job(stage, reads, plan) if isinstance(reads, Mapping) else _direct(spark, stage, reads, plan)
        reports = run_tagged(spark, job, tag)
    return outcome(stage, [*reports, *_closed(spark, stage, plan, tag, reports)])


def _closed(
    spark: SparkSession, stage: BoundStage, plan: TaskPlan, tag: str, reports: Sequence[Json]
) -> list[Json]:
    """What the watermark, or the end of a substream, ends in the tasks that did not run, because there was no input or Spark saw none."""
    operator, tasks = stage.operator, plan.shape.tasks
    absent = frozenset(range(tasks)) - {int(report["part"]) for report in reports}
    timed = operator is not None and operator.timing is not None and plan.times.watermark_us is not None
    if operator is None or not absent or not (timed or plan.times.ends):
        return []
    task = ClosingTask(StatefulTask(plan, operator), absent)
    closed = run_tagged(spark, _one_row_a_task(spark, tasks).mapInArrow(task, RESULT), tag)
    return [report for report in closed if report["part"] in absent]


def run_tagged(spark: SparkSession, df: DataFrame, tag: str) -> list[Json]:
    """Collect manifest rows; errors of ours that crossed the JVM come back as what they were."""
    spark.addTag(tag)
    try:
        collected = df.collect()
    except Exception as error:
        # Spark's own errors, and what the gateway or the connection under them raises.
        raise recognised(error) from error
    finally:
        spark.removeTag(tag)
    reports = []
    for report in collected:  # bounded: one report a task
        reports.append({**json.loads(report["body"]), "part": report["part"]})
    return sorted(reports, key=lambda report: report["part"])


def _direct(spark: SparkSession, stage: BoundStage, files: Sequence[DirectFile], plan: TaskPlan) -> DataFrame:
    assert isinstance(stage.operator, DirectOperator)
    task = DirectTask(plan, stage.operator, tuple(files))
    return _one_row_a_task(spark, plan.shape.tasks).mapInArrow(task, RESULT)


def _one_row_a_task(spark: SparkSession, tasks: int) -> DataFrame:
    return spark.range(0, tasks, 1, tasks)


def _job(stage: BoundStage, inputs: Mapping[Input, DataFrame], plan: TaskPlan) -> DataFrame:
    df = event_rows(stage, {origin.id: df for origin, df in inputs.items()})
    if stage.operator is None:
        columns = [field.name for field in stage.arrow_output]
        exact = [field.name for field in stage.output.fields if _exact(field.dataType.typeName())]
        hashed = df.select(f.expr(hash_sql(exact)).alias(ROW_HASH), *(f.col(f"`{name}`") for name in columns))
        return hashed.mapInArrow(StatelessTask(plan, stage.arrow_output, stage.spec.keeps_malformed), RESULT)
    grouped = stage.operator.grouped(df, plan.shape, plan.times)
    return grouped.mapInArrow(StatefulTask(plan, stage.operator), RESULT)


def outcome(stage: BoundStage, reports: Sequence[Json]) -> Outcome:
    """Put the manifest rows of all tasks together, in the order of the tasks."""
    segments: dict[str, list[Json]] = {}
    for report in reports:
        for port, files in report.get("segments", {}).items():
            segments.setdefault(port, []).extend(files)
    if stage.operator is None:
        digests: Json = {"rows": sum_of(segments.get("out", []), "rows")}
        digests["hash_sum"] = f"{sum(report['row_hash_sum'] for report in reports) % (1 << 64):016x}"
    else:
        digests = {
            str(report["part"]): [report["state_digest"], report["digests"]]
            for report in reports
            if "runs" in report
        }
    return Outcome(
        [run for report in reports for run in report.get("runs", [])],
        segments,
        digests,
        sum_of(reports, "keys"),
        sum_of(reports, "keys_added"),
        max((report.get("operator_ms", 0.0) for report in reports), default=0.0),
        _summed([report.get("counts", {}) for report in reports]),
        _newest([report.get("newest_us", []) for report in reports], len(stage.spec.feeds)),
        [(bucket, start) for report in reports for bucket, start in report.get("holds", [])],
        _labels([report.get("labels", {}) for report in reports]),
        sorted({label for report in reports for label in report.get("closing", [])}),
        _last([report.get("held", {}) for report in reports]),
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    reasons = sorted({reason for count in counts for reason in count})
    return {reason: sum(count.get(reason, 0) for count in counts) for reason in reasons}


def _labels(found: Sequence[Mapping[str, list[str]]]) -> dict[str, list[list[str]]]:
    ports = sorted({port for of_task in found for port in of_task})
    return {port: [sorted(of_task[port]) for of_task in found if port in of_task] for port in ports}


def _last(found: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """By label, the largest of what the tasks saw."""
    last: dict[str, int] = {}
    for label, bucket in (pair for of_task in found for pair in of_task.items()):
        last[label] = max(bucket, last.get(label, bucket))
    return last


def _newest(times: Sequence[Sequence[int | None]], feeds: int) -> list[int | None]:
    """By feed, the largest of what the tasks saw."""
    seen = [[of_task[i] for of_task in times if of_task and of_task[i] is not None] for i in range(feeds)]
    return [max(of_feed) if of_feed else None for of_feed in seen]  # type: ignore[type-var]


def recognised(error: Exception) -> HoldfastError:
    """The error behind a failed job: one of ours that a task raised, or Spark's own."""
    text = str(error)
    lost = lost_path(text)
    if lost:
        return LostFileError(lost, "a task did not find it whole")
    ours = re.search(f"{ERROR_MARK}(.*?):{ERROR_MARK}", text, re.DOTALL)
    if ours:
        facts = json.loads(ours.group(1))
        kind: type[HoldfastError] = getattr(errors, facts["kind"], HoldfastError)
        # What Spark SQL raises for us (sources/text_frames.py) never heals, and does not say so.
        heals = bool(facts.get("heals"))
        found = kind(facts["message"], operation="task", heals=heals, hint=facts["hint"])
        if isinstance(found, CodeError):
            found.trace, found.line = facts["trace"], facts["line"]
        return found
    if isinstance(error, PythonException) and is_of_their_code(text):
        return raised(text, "the stage's code", operation="task")
    told = re.search(r"\[[A-Z][A-Z0-9_.]+\] .*", text)
    first = told.group() if told else next(iter(text.strip().splitlines()), type(error).__name__)
    if isinstance(error, PySparkException) and (error.getSqlState() or "")[:2] in _OF_VALUES:
        return FlowError(f"Spark cannot compute the stage: {first}", operation="task", hint=_VALUES_HINT)
    damaged = "FAILED_READ_FILE" in first
    hint = "The file is damaged. Bring it back whole and run again." if damaged else None
    return SparkJobError(f"the Spark job failed: {first}", operation="job", hint=hint)


def is_interrupted(error: BaseException) -> bool:
    """Whether a job failed because somebody interrupted it."""
    return any(words in str(error) for words in ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]"))


def sum_of(parts: Sequence[Json], name: str) -> int:
    """The sum of a number that each part may have."""
    return sum(int(part.get(name, 0)) for part in parts)


def _exact(type_name: str) -> bool:
    """Floating-point columns are inexact by type; so are maps, whose order is not fixed, and nested types."""
    return type_name not in ("float", "double", "map", "struct", "array", "variant")
