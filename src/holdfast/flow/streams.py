"""Describes a stream of Structured Streaming: what makes it is called where the flow runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.duration import idle_us, microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MILLISECOND_US = 1_000


@dataclass(frozen=True)
class StreamSource:
    """A streaming DataFrame whose micro-batches are logged before a stage reads them.

    It can be read again because its log can, whatever its connector can do.
    """

    make: Callable[[SparkSession], DataFrame]
    schema: str
    trigger_us: int | None = None
    resumes: bool = True
    max_rows_per_epoch: int | None = None
    idle_after_us: int | None = None
    quarantines: ClassVar[bool] = False
    rereadable: ClassVar[bool] = True

    def reading(self) -> str:
        """A batch of the log gives the rows that were logged, in these columns."""
        return self.schema

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "stream",
            "made_by": getattr(self.make, "__qualname__", type(self.make).__name__),
            "schema": self.schema,
            "trigger": "as soon as possible" if self.trigger_us is None else spelled(self.trigger_us),
            "resumes": self.resumes,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "idle_after": None if self.idle_after_us is None else spelled(self.idle_after_us),
            "logged": "each micro-batch is durable in the work directory before a stage reads it",
        }


def read_stream(
    make: Callable[[SparkSession], DataFrame],
    *,
    schema: str,
    trigger: str | None = None,
    resumes: bool = True,
    max_rows_per_epoch: int | None = None,
    idle_after: str | None = None,
) -> StreamSource:
    """Read from any connector of Structured Streaming.

    A query of the flow's own runs it, with a checkpoint in the work directory, and writes every micro-batch to a log
    there; the flow reads the log.

    - `make`: `make(spark)` gives a streaming DataFrame.
    - `schema`: its columns, as Spark SQL text.
    - `trigger`: how often a batch is begun; by default as soon as the one before is done.
    - `resumes`: False says that the connector cannot go on where a checkpoint ends, as a socket cannot: every run then begins anew,
      and what was received and not yet logged is gone. True by default.
    - `max_rows_per_epoch`: the most that an epoch takes; by default what there is, within bounds of memory.
    - `idle_after`: as for `hf.files`; None by default.

    Raises `hf.PlanError` if `make` is no function, a bound is below 1, or a duration cannot be read.

    >>> rates = read_stream(lambda spark: spark.readStream.format("rate").load(), schema="timestamp timestamp, value long")
    """
    if not callable(make):
        raise PlanError(
            f"read_stream needs a function that makes a stream, not {make!r}",
            operation="read_stream",
            hint='Write it as lambda spark: spark.readStream.format("...").load().',
        )
    if max_rows_per_epoch is not None and max_rows_per_epoch < 1:
        raise PlanError(
            f"max_rows_per_epoch must be at least 1, not {max_rows_per_epoch}", operation="read_stream"
        )
    return StreamSource(make, schema, _trigger(trigger), resumes, max_rows_per_epoch, idle_us(idle_after))


def _trigger(trigger: str | None) -> int | None:
    if trigger is None:
        return None
    found = microseconds(trigger, "trigger")
    if found % _MILLISECOND_US:
        raise PlanError(
            f"trigger={trigger!r} is finer than a millisecond, which Spark does not count in",
            operation="read_stream",
        )
    return found
