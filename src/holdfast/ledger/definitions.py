"""What the stages and sinks of a flow were when they last ran here; compared, and written anew, when it runs again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.json import Json
from holdfast.flow.definition import Definition
from holdfast.ledger import schema
from holdfast.ledger.ledger import record_event
from holdfast.protocols.definitions import Known, Target, check_sinks, check_stages

_STAGE, _SINK = "stage:", "sink:"

# The event of a change in the user's code of a stage that has run.
CODE_CHANGED = "code changed"


def settle(
    tx: Connection,
    generation: int,
    own: Collection[str],
    stages: Mapping[str, Definition],
    sinks: Mapping[str, Target],
) -> list[str]:
    """Refuse a flow whose stages are not those of the ledger; write down the `own` ones. Returns what code has changed.

    Every worker of a flow judges all of it, so that none goes on beside one that is refused.
    """
    recorded = _recorded(tx)
    known = _known(tx, recorded)
    check_stages(known, stages)
    check_sinks(_targets(recorded, known), sinks)
    told = []
    for name in own:
        before = recorded.get(_STAGE + name)
        has_run = name in known and known[name].head >= 0
        changed = _changed_code(before.code, stages[name].code) if before and has_run else []
        if changed:
            told.append(f"its code has changed ({', '.join(changed)})")
            record_event(tx, CODE_CHANGED, told[-1], stage=name, generation=generation)
        _write(tx, _STAGE + name, dict(stages[name].parts), dict(stages[name].code))
    for name, sink in sinks.items():
        if sink.stage in own:
            _write(tx, _SINK + name, {"stage": sink.stage, "target": sink.target}, {})
    return told


def _recorded(tx: Connection) -> dict[str, sa.Row[Any]]:
    return {row.name: row for row in tx.execute(sa.select(schema.definitions))}


def _known(tx: Connection, recorded: Mapping[str, sa.Row[Any]]) -> dict[str, Known]:
    """The stages of the ledger. One of which only the state's schema is known was made by an older Holdfast."""
    table, found = schema.stages, {}
    for row in tx.execute(sa.select(table.c.stage, table.c.head, table.c.state_schema)):
        mine = recorded.get(_STAGE + row.stage)
        parts = mine.body if mine else row.state_schema or {}
        found[row.stage] = Known(row.head, parts, mine is not None)
    return found


def _targets(recorded: Mapping[str, sa.Row[Any]], known: Mapping[str, Known]) -> dict[str, Target]:
    """The targets that may have been published to."""
    found = {
        name.removeprefix(_SINK): Target(**row.body)
        for name, row in recorded.items()
        if name.startswith(_SINK)
    }
    return {name: one for name, one in found.items() if one.stage in known and known[one.stage].head >= 0}


def _changed_code(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def _write(tx: Connection, name: str, body: Json, code: Json) -> None:
    table = schema.definitions
    tx.execute(sa.delete(table).where(table.c.name == name))
    tx.execute(sa.insert(table).values(name=name, body=body, code=code))
