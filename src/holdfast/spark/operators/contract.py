"""What an operator gives back, and the shape of the job that feeds it. Operators do not care where rows come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from holdfast.core.json import Json
from holdfast.protocols.watermark import Timing
from holdfast.spark.operators.view import StateView
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine


@dataclass(frozen=True)
class Shape:
    """What of a job's shape can change its result, or the last bits of it; recorded in the plan."""

    boundaries: Sequence[int]  # of slots: task i owns boundaries[i] up to boundaries[i + 1]
    aggregate_first: bool

    @property
    def tasks(self) -> int:
        """How many tasks the state is split over."""
        return len(self.boundaries) - 1

    def slots(self, task: int) -> tuple[int, int]:
        """The slots that a task owns."""
        return self.boundaries[task], self.boundaries[task + 1]


@dataclass(frozen=True)
class Times:
    """What an epoch knows of time; recorded in the plan."""

    watermark_us: int | None
    now_us: int
    epoch: int = 0
    ends: tuple[str, ...] = ()  # substreams that a source closes, or whose final emission a stage makes


@dataclass(frozen=True)
class Changes:
    """What one task of one epoch did."""

    layer: pa.Table  # the changed state rows
    outputs: Mapping[str, pa.Table]  # by port
    keys_added: int  # less those that left
    counts: Mapping[str, int] = field(
        default_factory=dict
    )  # of rows that did not go the usual way, by reason
    newest_us: Sequence[int | None] = ()  # the largest event time, by feed: an input of a side
    holds: Sequence[tuple[int, int]] = ()  # (bucket, the smallest event time of a row held back in it)
    closing: Sequence[str] = ()  # labels of substreams of which no row comes any more
    held: str | None = (
        None  # the state's column of the label, where rows are held back until their bucket closes
    )


@dataclass(frozen=True)
class Direct:
    """What a task needs to take rows from files itself, instead of from Spark."""

    keys: tuple[str, ...]  # columns whose hash says which task a row belongs to
    columns: tuple[tuple[str, ...], ...]  # by side, all that `apply_rows` looks at


class Operator(Protocol):
    """A stateful operator, bound to its types. It is pickled into the tasks."""

    @property
    def received(self) -> pa.Schema:
        """The columns that `grouped` gives and `apply` takes."""

    @property
    def state(self) -> StateSchema:
        """The columns of its state rows."""

    @property
    def output_ddl(self) -> t.StructType:
        """The columns of its output."""

    @property
    def hash_bits(self) -> int:
        """How much of the key hash is used."""

    @property
    def description(self) -> Json:
        """What must not change while there is state."""

    @property
    def view(self) -> StateView:
        """How its state reads to a person."""

    @property
    def timing(self) -> Timing | None:
        """What event time means for its plans; None if it has none."""

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """The part in Spark SQL: rows with their key hash, in the partition of the task that owns it."""

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """The part in NumPy and Arrow; `rows` is empty in an epoch that only closes."""


@runtime_checkable
class DirectOperator(Operator, Protocol):
    """An operator whose tasks may take rows from files themselves."""

    @property
    def direct(self) -> Direct | None:
        """How `apply_rows` is fed; None if only Spark SQL can prepare the rows."""

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """Both parts at once, on a task's own rows as the inputs have them, with their hash and their feed.

        Rows come by side, None where a side has none; but some side has.
        """
