"""The everyday steps of a stream, as a person names them: where, select, with_columns, drop, rename, enrich.

Each says what it does: two of them are the same step if their texts are the same. `spark/verbs.py` does it. Expressions are
SQL, because a flow is described where no Spark runs; a Column cannot be made there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.errors import PlanError
from holdfast.flow.enrichment import Enrich


@dataclass(frozen=True)
class Where:
    """Keeps the rows for which a condition is true."""

    condition: str

    def __str__(self) -> str:
        return f"where {self.condition}"


@dataclass(frozen=True)
class Select:
    """Gives the columns that it names or computes, and no others."""

    expressions: tuple[str, ...]

    def __str__(self) -> str:
        return f"select {', '.join(self.expressions)}"


@dataclass(frozen=True)
class WithColumns:
    """Adds columns, or replaces those of the same name."""

    columns: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"with {', '.join(f'{name} = {expression}' for name, expression in self.columns)}"


@dataclass(frozen=True)
class Drop:
    """Leaves columns out."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"drop {', '.join(self.columns)}"


@dataclass(frozen=True)
class Rename:
    """Gives columns other names."""

    names: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"rename {', '.join(f'{old} to {new}' for old, new in self.names)}"


Verb = Where | Select | WithColumns | Drop | Rename | Enrich


def where(condition: object) -> Where:
    """A condition in SQL."""
    return Where(_sql("where", condition))


def select(expressions: tuple[object, ...], named: Mapping[str, object]) -> Select:
    """Columns and expressions in SQL; those that are given by name are called so."""
    given = [_sql("select", one) for one in expressions]
    given += [f"{_sql('select', one)} AS {_quoted(name)}" for name, one in named.items()]
    if not given:
        raise _refused("select needs at least one column")
    return Select(tuple(given))


def with_columns(columns: Mapping[str, object]) -> WithColumns:
    """Expressions in SQL, by the names of their columns."""
    if not columns:
        raise _refused("with_columns needs at least one column")
    return WithColumns(tuple((_name("with_columns", name), _sql(name, one)) for name, one in columns.items()))


def drop(columns: tuple[object, ...]) -> Drop:
    """Names of columns."""
    if not columns:
        raise _refused("drop needs at least one column")
    names = tuple(_name("drop", name) for name in columns)
    if len(set(names)) != len(names):
        raise _refused(f"drop names a column twice: {', '.join(names)}")
    return Drop(names)


def rename(names: Mapping[str, object]) -> Rename:
    """The new names, by the old ones."""
    if not names:
        raise _refused("rename needs at least one column", "Say rename(old='new').")
    return Rename(tuple((_name("rename", old), _name("rename", new)) for old, new in names.items()))


def _sql(what: str, given: object) -> str:
    if isinstance(given, str) and given.strip():
        return given
    if type(given).__module__.startswith("pyspark.sql"):
        raise _refused(
            f"{what} takes SQL text, not a {type(given).__name__}",
            'A flow is described where no Spark runs, so write the expression as text, "amount > 5", or use '
            ".transform(lambda df: ...), where a Column can be made.",
        )
    hint = (
        "Say .transform(function) for a function." if callable(given) else 'Write it as text, "amount > 5".'
    )
    raise _refused(f"{what} takes SQL text, not {given!r}", hint)


def _name(what: str, given: object) -> str:
    if isinstance(given, str) and given:
        return given
    raise _refused(f"{what} takes names of columns, not {given!r}")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _refused(message: str, hint: str | None = None) -> PlanError:
    return PlanError(message, operation="describe", hint=hint)
