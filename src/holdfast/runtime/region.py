"""A stage's part in the snapshots of its region: how far it may plan, when it is captured, and how all return.

What leaves a region leaves when a snapshot covers it, so nothing that is undone by a return was ever seen outside.
"""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.errors import FencedError
from holdfast.flow.prefixes import Input
from holdfast.ledger import epochs, snapshots
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.returning import return_to
from holdfast.ledger.snapshots import Snapshot
from holdfast.protocols import snapshots as protocol
from holdfast.protocols.snapshots import Part
from holdfast.runtime.context import Runtime


def ceilings(rt: Runtime, tx: sa.Connection, row: StageRow) -> dict[str, int] | None:
    """By input, the position up to which a stage may plan its next epoch; None if it may not plan at all."""
    if not rt.region:
        return {}
    if row.stage not in rt.region:
        return _ceilings_outside(rt, tx, row.stage)
    if not snapshots.last_complete(tx, list(rt.region)):
        return None
    if rt.script.cuts and not rt.script.may_go_on(tx, row):
        return None
    under_way = [(one.mode, one.parts) for one in snapshots.all_snapshots(tx, protocol.PREPARING)]
    return protocol.bounds(rt.region, row.stage, under_way)


def take_part(rt: Runtime, stage: str) -> bool:
    """Add to the oldest snapshot that lacks it what a stage has now, if it is time; whether it was."""
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage, rt.generation)
        found = _next_part(rt, tx, row)
    if found is None:
        return False
    number, part = found
    crashpoints.reach("snapshot.before_part")
    try:
        snapshots.add_part(rt.ledger, row, number, part)
    except FencedError:
        # The stage has gone on meanwhile, which only means to look again; or this process was replaced.
        rt.ledger.refuse_deposed(rt.generation)
        return False
    crashpoints.reach("snapshot.after_part")
    return True


def return_region(rt: Runtime) -> str:
    """Bring all stages of the region back to the last complete snapshot; what that undid, in words."""
    stages = list(rt.region)
    crashpoints.reach("recover.before_commit")
    with rt.ledger.write(rt.generation) as tx:
        snapshot = snapshots.last_complete(tx, stages)
        if snapshot is None:
            return "there is no snapshot yet: it goes on with the files of its predecessor"
        undone = return_to(tx, snapshot, rt.own, f"the worker of group {rt.group!r} was lost")
    return f"the region returned to snapshot {snapshot.number}, which undid {sum(undone.values())} epochs"


def _ceilings_outside(rt: Runtime, tx: sa.Connection, stage: str) -> dict[str, int]:
    """A stage outside reads of the region what a complete snapshot covers."""
    inputs = rt.stages[stage].spec.inputs
    return {origin.id: _released(tx, origin) + 1 for origin in inputs if _is_inside(rt, origin)}


def _is_inside(rt: Runtime, origin: Input) -> bool:
    return origin.kind == "channel" and origin.name in rt.region


def _released(tx: sa.Connection, origin: Input) -> int:
    return snapshots.released(tx, epochs.stage_row(tx, origin.name))


def _next_part(rt: Runtime, tx: sa.Connection, row: StageRow) -> tuple[int, Part] | None:
    lacking = _lacking(tx, row.stage)
    if not lacking or (rt.script.cuts and not rt.script.is_at_cut(tx, row)):
        return None
    snapshot, standing = lacking[0], snapshots.standing(tx, row)
    part = protocol.part_of(snapshot.mode, rt.region, row.stage, standing, snapshot.parts)
    return None if part is None else (snapshot.number, part)


def _lacking(tx: sa.Connection, stage: str) -> list[Snapshot]:
    """Snapshots that a stage has yet to add its part to, in the order in which it does."""
    return [one for one in snapshots.all_snapshots(tx, protocol.PREPARING) if stage not in one.parts]
