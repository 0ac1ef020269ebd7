"""Describes a generator of events: rows that follow from a seed, for demos and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from holdfast.core.duration import idle_us, microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Recipe:
    """All that decides what the rows are; how many there are and when they come is not part of it."""

    schema: str
    seed: int
    keys: tuple[tuple[str, int], ...]  # by column, how many values it has
    repeat: float
    start_us: int
    spacing_us: int
    disorder_us: int


@dataclass(frozen=True)
class GenerateSource:
    """Rows made on the spot, `per_epoch` at a time, not before they are due."""

    recipe: Recipe
    rows: int
    per_epoch: int
    rate: float | None
    idle_after_us: int | None = None
    quarantines: ClassVar[bool] = False
    rereadable: ClassVar[bool] = True

    @property
    def schema(self) -> str:
        """The columns, as the user wrote them."""
        return self.recipe.schema

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "generate",
            "schema": self.schema,
            "rows": self.rows,
            "rows_per_epoch": self.per_epoch,
            "rows_per_second": self.rate,
            "idle_after": None if self.idle_after_us is None else spelled(self.idle_after_us),
        }

    def reading(self) -> str:
        """What decides which rows an item gives."""
        return repr(self.recipe)


def generate(
    schema: str = "id string, user string, amount double, qty int, ts timestamp",
    *,
    rows: int,
    per_epoch: int = 10_000,
    rate: float | None = None,
    seed: int = 0,
    keys: Mapping[str, int] | None = None,
    repeat: float = 0.0,
    start: str = "2026-01-01T00:00:00Z",
    spacing: str = "1 millisecond",
    disorder: str = "0 seconds",
    idle_after: str | None = None,
) -> GenerateSource:
    """Generate events from a seed: the same rows in every run, on every machine.

    - `schema`: the columns, as Spark SQL text; by default those of orders. A string or bigint column is different in every row,
      unless `keys` names it.
    - `rows`: how many there are.
    - `per_epoch`: how many an epoch takes; 10,000 by default.
    - `rate`: rows a second since the flow first began, whether it was running or not; by default all are there at once.
    - `seed`: another one gives other rows; 0 by default.
    - `keys`: by column, how many values it has, as in `{"user": 1000}`; none by default.
    - `repeat`: the share of rows that repeat an earlier one; 0 by default.
    - `start`, `spacing`, `disorder`: timestamp columns begin at `start` (ISO 8601) and go on by `spacing` a row (a millisecond by default),
      each up to `disorder` behind its place (by default not at all).
    - `idle_after`: as for `hf.files`; None by default.

    Raises `hf.PlanError` if a number is out of its range, or a time or duration cannot be read.

    >>> generate(rows=1_000, keys={"user": 10}).per_epoch
    10000
    """
    _check_sizes(rows, per_epoch, rate, repeat)
    if seed < 0:
        raise PlanError(f"seed must not be negative: {seed}", operation="generate")
    few = tuple(sorted((keys or {}).items()))
    for column, values in few:
        if values < 1:
            raise PlanError(
                f"keys gives column {column!r} {values} values: it needs one", operation="generate"
            )
    recipe = Recipe(
        schema,
        seed,
        few,
        repeat,
        _moment(start),
        microseconds(spacing, "spacing", zero=True),
        microseconds(disorder, "disorder", zero=True),
    )
    return GenerateSource(recipe, rows, per_epoch, rate, idle_us(idle_after))


def _check_sizes(rows: int, per_epoch: int, rate: float | None, repeat: float) -> None:
    for name, number in (("rows", rows), ("per_epoch", per_epoch)):
        if number < 1:
            raise PlanError(f"{name} must be at least 1, not {number}", operation="generate")
    if rate is not None and not rate > 0:
        raise PlanError(f"rate is rows a second, more than none, not {rate}", operation="generate")
    if not 0 <= repeat < 1:
        raise PlanError(f"repeat is a share of the rows, below 1, not {repeat}", operation="generate")


def _moment(start: str) -> int:
    """A point in time as microseconds since 1970; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        raise PlanError(
            f"start={start!r} is not a time",
            operation="generate",
            hint="Write it as ISO 8601, such as 2026-01-01T00:00:00Z.",
        ) from error
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
