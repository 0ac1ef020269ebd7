"""The return of a region to a snapshot, in one transaction.

Invariants: all stages of the region go back together, each under a new branch; whoever worked for them is fenced by a
new generation, and the living keep their place in it; a stage or sink outside that has had more than the snapshot
covers makes the return impossible, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.ledger import branches, groups, schema
from holdfast.ledger.epochs import stage_row
from holdfast.ledger.ledger import record_event
from holdfast.ledger.snapshots import Snapshot, abort_open


def return_to(tx: Connection, snapshot: Snapshot, own: Sequence[str], reason: str) -> dict[str, int]:
    """Bring a snapshot's stages back to it; by stage, how many epochs that undoes. `own` are those of the caller's group.

    The caller's own generation was given to it for this; that of other groups is raised.
    """
    ahead = those_ahead(tx, snapshot)
    if ahead:
        raise LedgerError(
            f"snapshot {snapshot.number} cannot be returned to: {', '.join(map(str, ahead))}",
            operation="return",
            hint="What has left the region cannot be undone there. Return to a newer snapshot.",
        )
    undone = {}
    for stage, part in snapshot.parts.items():
        row = stage_row(tx, stage)
        undone[stage] = branches.begin(tx, row, part.epoch, reason)
        _set_cursors(tx, stage, part.positions)
        said = f"to snapshot {snapshot.number}: {undone[stage]} epochs are undone; {reason}"
        record_event(tx, "returned", said, stage=stage, epoch=part.epoch)
    groups.raise_generations(tx, [stage for stage in snapshot.parts if stage not in own], reason)
    stages = schema.stages
    tx.execute(sa.update(stages).where(stages.c.stage.in_(list(snapshot.parts))).values(orphaned=0))
    abort_open(tx, f"the region returned to snapshot {snapshot.number}")
    return undone


@dataclass(frozen=True)
class Ahead:
    """A consumer outside the region that has had more than a snapshot covers."""

    consumer: str
    input: str
    stage: str
    had: int  # the last epoch that it has had
    covered: int  # the last that the snapshot covers

    def __str__(self) -> str:
        return (
            f"{self.consumer} has had epoch {self.had} of stage {self.stage!r}, and the snapshot ends at "
            f"{self.covered}"
        )


def those_ahead(tx: Connection, snapshot: Snapshot) -> list[Ahead]:
    """Who outside the region has read more than a snapshot covers."""
    positions = consumers_outside(tx, snapshot)
    return [
        Ahead(consumer, name, stage, processed - 1, snapshot.parts[stage].epoch)
        for consumer, name, stage, processed in positions
        if processed > snapshot.parts[stage].epoch + 1
    ]


def consumers_outside(tx: Connection, snapshot: Snapshot) -> list[tuple[str, str, str, int]]:
    """Who outside the region reads it: the consumer, the input, the stage that writes it, and the next position."""
    cursors = schema.cursors
    order = cursors.c.consumer, cursors.c.input
    found = tx.execute(sa.select(*order, cursors.c.processed).order_by(*order)).all()
    outside = []
    for consumer, name, processed in found:
        producer = name.removeprefix("channel:").rpartition(".")[0] if name.startswith("channel:") else ""
        inside = consumer.startswith("stage:") and consumer.removeprefix("stage:") in snapshot.parts
        if producer in snapshot.parts and not inside:
            outside.append((consumer, name, producer, int(processed)))
    return outside


def _set_cursors(tx: Connection, stage: str, positions: Mapping[str, int]) -> None:
    cursors = schema.cursors
    for name, position in positions.items():
        mine = (cursors.c.consumer == f"stage:{stage}", cursors.c.input == name)
        tx.execute(sa.update(cursors).where(*mine).values(processed=position))
