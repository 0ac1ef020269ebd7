"""Has a flow run along plans and items that were recorded before, or only to a position of its sources.

Two runs of one script read the same ranges in the same epochs, whatever happens to them in between: so what they leave
in the sinks can be compared row by row. `holdfast verify` is built on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from holdfast.core.errors import FlowError
from holdfast.core.json import Json
from holdfast.ledger import epochs, schema, snapshots
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.snapshots import PREPARING


@dataclass(frozen=True)
class Versions:
    """What the tables of a recorded run held: its work directory, and by stage and table the newest copy there."""

    root: Path
    newest: Mapping[str, Mapping[str, Json]]


@dataclass(frozen=True)
class Script:
    """What a run may read, and, with plans, in which epochs it does."""

    until: Mapping[str, int] = field(default_factory=dict)  # by source: items from here on do not exist yet
    plans: Mapping[str, Mapping[int, Json]] | None = None  # by stage and epoch
    found: Mapping[str, Sequence[Item]] = field(
        default_factory=dict
    )  # by source: its items, if it is not to be asked
    cuts: Sequence[Mapping[str, int]] = ()  # by snapshot and stage: the last epoch in it
    versions: Versions | None = None  # of tables, if these are not to be looked at

    def room(self, source: str, known: int) -> int | None:
        """How many further items of a source exist; None if nobody says."""
        ends = [len(self.found[source])] if source in self.found else []
        ends += [self.until[source]] if source in self.until else []
        return max(0, min(ends) - known) if ends else None

    def further(self, source: str, known: int) -> Sequence[Item] | None:
        """What follows the items that are known; None for a source that is to be asked."""
        return self.found[source][known:] if source in self.found else None

    def plan(self, tx: sa.Connection, row: StageRow) -> Json | None:
        """The recorded plan of the epoch after the head, once its input is there and what was passed over before it is."""
        assert self.plans is not None
        body = self.plans.get(row.stage, {}).get(row.head + 1)
        if body is None or not all(_is_there(tx, name, stop) for name, (_, stop) in body["ranges"].items()):
            return None
        at = {name: ledger_inputs.processed(tx, f"stage:{row.stage}", name) for name in body["ranges"]}
        for name, (start, _) in body["ranges"].items():
            if at[name] > start or ledger_inputs.rows_between(tx, name, at[name], start):
                raise FlowError(
                    f"the recorded plan reads {name} from {start}, but the run has read up to {at[name]}",
                    operation="follow a script",
                    stage=row.stage,
                    epoch=row.head + 1,
                )
        return body if at == self.starts(row) else None

    def starts(self, row: StageRow) -> dict[str, int]:
        """By input, from where the recorded plan of the epoch after the head reads; nothing if there is none."""
        body = (self.plans or {}).get(row.stage, {}).get(row.head + 1, {"ranges": {}})
        return {name: int(start) for name, (start, _) in body["ranges"].items()}

    def next_cut(self, tx: sa.Connection, stages: Sequence[str]) -> Mapping[str, int] | None:
        """The snapshot that follows the last complete one."""
        at = self._complete(tx, stages)
        return self.cuts[at] if at < len(self.cuts) else None

    def can_cut(self, tx: sa.Connection, stages: Sequence[str]) -> bool:
        """Whether the stages have come as far as the next snapshot wants them."""
        cut = self.next_cut(tx, stages)
        return cut is not None and all(epochs.stage_row(tx, stage).head == cut[stage] for stage in stages)

    def is_at_cut(self, tx: sa.Connection, row: StageRow) -> bool:
        """Whether a stage stands where the next snapshot wants it; a first one is taken wherever it stands."""
        cut = self.next_cut(tx, list(self.cuts[0]))
        return cut is None or cut[row.stage] == row.head

    def may_go_on(self, tx: sa.Connection, row: StageRow) -> bool:
        """Whether a stage need not wait to be captured where it stands."""
        at = self._complete(tx, list(self.cuts[0]))
        under_way = snapshots.all_snapshots(tx, PREPARING)
        at += int(bool(under_way) and row.stage in under_way[0].parts)
        return at >= len(self.cuts) or row.head < self.cuts[at][row.stage]

    def _complete(self, tx: sa.Connection, stages: Sequence[str]) -> int:
        """How many of the snapshots are complete; one that was taken elsewhere is taken for none."""
        last = snapshots.last_complete(tx, stages)
        found = {stage: part.epoch for stage, part in last.parts.items()} if last else None
        return next((at + 1 for at, cut in enumerate(self.cuts) if cut == found), 0)

    def given_up(self, stage: str, epoch: int) -> Collection[str]:
        """The ports of an epoch whose rows were lost then, before anybody read them."""
        ports: Collection[str] = (self.plans or {}).get(stage, {}).get(epoch, {}).get("given_up", ())
        return ports


UNSCRIPTED = Script()


def recorded(ledger: Ledger) -> dict[str, dict[int, Json]]:
    """All plans of committed epochs, by stage and epoch."""
    plans, stages = schema.plans, schema.stages
    with ledger.read() as tx:
        found = tx.execute(
            sa.select(plans.c.stage, plans.c.epoch, plans.c.body)
            .join(stages, sa.and_(plans.c.stage == stages.c.stage, plans.c.branch == stages.c.branch))
            .where(plans.c.epoch <= stages.c.head)
            .order_by(plans.c.epoch)
        ).all()
    by_stage: dict[str, dict[int, Json]] = {}
    for stage, epoch, body in found:
        by_stage.setdefault(stage, {})[epoch] = body
    return by_stage


def recorded_cuts(ledger: Ledger) -> list[dict[str, int]]:
    """Where the complete snapshots cut the stages, oldest first, each place once."""
    with ledger.read() as tx:
        found = snapshots.all_snapshots(tx, *snapshots.COMPLETE)
    cuts: list[dict[str, int]] = []
    for snapshot in found:
        cut = {stage: part.epoch for stage, part in snapshot.parts.items()}
        if cut not in cuts:
            cuts.append(cut)
    return cuts


def _is_there(tx: sa.Connection, name: str, stop: int) -> bool:
    kind, _, rest = name.partition(":")
    if kind == "source":
        return ledger_inputs.number_of_items(tx, rest.partition("#")[0]) >= stop
    return epochs.stage_row(tx, rest.rpartition(".")[0]).head + 1 >= stop
