"""The schemas of sources, as they last were: what was inferred once holds from then on, and what is edited is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.ledger import schema
from holdfast.ledger.ledger import Ledger, record_event

_SOURCE = "source:"

# The events of a schema that was inferred, and of one that is another than before.
SCHEMA_INFERRED, SCHEMA_CHANGED = "schema inferred", "schema changed"


@dataclass(frozen=True)
class SourceSchema:
    """The columns of a source, as DDL, and of how many files they were inferred; None where the flow declares them."""

    ddl: str
    inferred_from: int | None = None


def recorded(tx: Connection) -> dict[str, SourceSchema]:
    """By source, what is written down; a ledger that nobody has taken since this is kept may have nothing."""
    table = schema.definitions
    if not sa.inspect(tx).has_table(table.name):
        return {}
    rows = tx.execute(sa.select(table.c.name, table.c.body).where(table.c.name.startswith(_SOURCE)))
    return {name.removeprefix(_SOURCE): SourceSchema(**body) for name, body in rows}


def record_inferred(ledger: Ledger, source: str, found: SourceSchema) -> SourceSchema:
    """Write down what was inferred, unless another process was first; what holds from here on.

    Nothing of a flow depends on it yet, so whoever comes first decides: workers of all groups then read the same.
    """
    with ledger.unfenced_write() as tx:
        first = recorded(tx).get(source)
        if first is not None:
            return first
        _write(tx, source, found)
        files = "1 file" if found.inferred_from == 1 else f"{found.inferred_from} files"
        record_event(tx, SCHEMA_INFERRED, f"source {source}, from {files}: {found.ddl}")
    return found


def settle(tx: Connection, generation: int, declared: Mapping[str, SourceSchema]) -> None:
    """Write down what the flow declares, and tell of what is another than before."""
    before = recorded(tx)
    for source, now in declared.items():
        old = before.get(source)
        if old is not None and old.ddl != now.ddl:
            told = f"source {source}: {old.ddl} -> {now.ddl}"
            record_event(tx, SCHEMA_CHANGED, told, generation=generation)
        if old is None or old.ddl != now.ddl:
            _write(tx, source, now)


def _write(tx: Connection, source: str, found: SourceSchema) -> None:
    table, name = schema.definitions, f"{_SOURCE}{source}"
    body = {"ddl": found.ddl, "inferred_from": found.inferred_from}
    tx.execute(sa.delete(table).where(table.c.name == name))
    tx.execute(sa.insert(table).values(name=name, body=body, code={}))
