"""Describes sources and sinks of the user's own: what makes them is called where the flow runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.duration import idle_us, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OwnSource:
    """A source of the user's own."""

    make: Callable[[], object]
    rereadable: bool = True
    idle_after_us: int | None = None
    quarantines: ClassVar[bool] = False

    def reading(self) -> str:
        """Only its author knows what decides which rows an item gives."""
        return ""

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "own",
            "made_by": _name(self.make),
            "idle_after": None if self.idle_after_us is None else spelled(self.idle_after_us),
        }


@dataclass(frozen=True)
class OwnSink:
    """A sink of the user's own."""

    make: Callable[[pa.Schema], object]
    read: Callable[[], pa.Table | Sequence[Mapping[str, object]]] | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "kind": "own",
            "made_by": _name(self.make),
            "guarantee": "exactly_once",
            "because": "its author says that it keeps the contract of sinks, which holdfast.testing checks",
        }


def own_source(
    make: Callable[[], object], *, rereadable: bool = True, idle_after: str | None = None
) -> OwnSource:
    """Read from a source of your own.

    - `make`: `make()` gives a `holdfast.edges.Source`; it is called where the flow runs.
    - `rereadable`: False says that it cannot give the same rows again; only `guarantee="at_most_once"` takes such a source. True by
      default.
    - `idle_after`: as for `hf.files`; None by default.

    Raises `hf.PlanError` if `make` is no function, or a duration cannot be read.
    """
    _check_callable("own_source", make)
    return OwnSource(make, rereadable, idle_us(idle_after))


def own_sink(
    make: Callable[[pa.Schema], object],
    *,
    read: Callable[[], pa.Table | Sequence[Mapping[str, object]]] | None = None,
) -> OwnSink:
    """Write to a sink of your own.

    - `make`: `make(schema)` gives a `holdfast.edges.Sink`, or a `holdfast.edges.TwoPhase`; it is called where the flow runs, with an
      Arrow schema.
    - `read`: gives back all rows that a reader of the target sees, for `holdfast verify` to compare; None by default.

    Raises `hf.PlanError` if one of them is no function.
    """
    _check_callable("own_sink", make)
    if read is not None:
        _check_callable("own_sink", read)
    return OwnSink(make, read)


def _check_callable(operation: str, function: object) -> None:
    if not callable(function):
        raise PlanError(
            f"{operation} needs a function that makes it, not {function!r}",
            operation=operation,
            hint="Write it as lambda: MySource(...), or as lambda schema: MySink(schema).",
        )


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
