"""Files that manifests name: the spine of a state, what is lost, what is durable, what may be deleted.

Invariants: a spine is made of consecutive live layers; a merged layer stands in for its inputs only at or
above the end of its range; only what no cursor and no safe point can need again is condemned, and only
condemned files are ever unlinked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.core.errors import LedgerError
from holdfast.core.json import Json
from holdfast.ledger import schema
from holdfast.ledger.epochs import StageRow, commit_files, commit_segment, settle_attempt
from holdfast.ledger.ledger import Ledger, record_event
from holdfast.ledger.pins import pinned
from holdfast.protocols.retention import Spanning


@dataclass(frozen=True)
class LayerRow:
    """A layer as the ledger names it."""

    id: int
    first: int
    last: int
    attempt: str
    rows: int
    bytes: int
    runs: list[Json]

    @property
    def buckets(self) -> set[int]:
        """Buckets that any run of the layer holds."""
        return {bucket for run in self.runs for bucket, _ in run["buckets"]}

    def rows_from(self, floor: int | None) -> int:
        """Rows that are in buckets from `floor` on."""
        if floor is None:
            return self.rows
        firsts = [next((at for b, at in run["buckets"] if b >= floor), run["rows"]) for run in self.runs]
        return self.rows - sum(int(first) for first in firsts)


# A layer, or whatever else spans epochs.
Layer = TypeVar("Layer", bound=Spanning)


def live_layers(tx: Connection, row: StageRow) -> list[LayerRow]:
    """All layers of a stage whose files are there, merged ones beside their inputs."""
    return _layers(tx, row, "live")


def _layers(tx: Connection, row: StageRow, status: str) -> list[LayerRow]:
    table = schema.layers
    found = tx.execute(
        sa.select(
            table.c.id,
            table.c.first,
            table.c.last,
            table.c.attempt,
            table.c.rows,
            table.c.bytes,
            table.c.runs,
        )
        .where(table.c.stage == row.stage, table.c.branch == row.branch, table.c.status == status)
        .order_by(table.c.first, table.c.last)
    )
    return [LayerRow(*values) for values in found]


def cover(layers: Sequence[Layer], epoch: int) -> tuple[list[Layer], int]:
    """The fewest consecutive layers from epoch 0 on that end at or before `epoch`, and the epoch after them."""
    longest: dict[int, Layer] = {}
    for layer in layers:
        if layer.last <= epoch and (layer.first not in longest or longest[layer.first].last < layer.last):
            longest[layer.first] = layer
    spine, position = [], 0
    while position in longest:
        spine.append(longest[position])
        position = longest[position].last + 1
    return spine, position


def commit_merge(
    ledger: Ledger, row: StageRow, attempt: str, inputs: Sequence[LayerRow], layer: Json
) -> None:
    """Publish a merged layer; refused unless its inputs still stand consecutively in the spine."""
    with ledger.unfenced_write() as tx:
        settle_attempt(tx, row, attempt)
        live = {found.id for found in live_layers(tx, row)}
        if any(found.id not in live for found in inputs):
            raise LedgerError("an input of the merge is gone", operation="merge", stage=row.stage, heals=True)
        epochs = inputs[0].first, inputs[-1].last
        commit_files(tx, row, attempt, epochs, layer)
        reason = (
            f"{len(inputs)} layers of epochs {epochs[0]} to {epochs[1]} became one of {layer['rows']} rows"
        )
        record_event(tx, "merged", reason, stage=row.stage, epoch=epochs[1], generation=row.generation)


def commit_repair(
    ledger: Ledger,
    row: StageRow,
    attempt: str,
    epoch: int,
    layer: Json | None,
    segments: dict[str, Json],
) -> None:
    """Put new files in the place of lost ones of the same epoch, whose digests were found equal."""
    table = schema.segments
    with ledger.unfenced_write() as tx:
        settle_attempt(tx, row, attempt)
        if layer is not None:
            commit_files(tx, row, attempt, (epoch, epoch), layer)
        for port, segment in segments.items():
            replaced = tx.execute(
                sa.delete(table).where(
                    table.c.stage == row.stage,
                    table.c.branch == row.branch,
                    table.c.epoch == epoch,
                    table.c.port == port,
                    table.c.status == "lost",
                )
            )
            if replaced.rowcount:
                commit_segment(tx, row, attempt, epoch, port, segment)
        what = [*(["the layer"] if layer else []), *(f"port {port}" for port in segments)]
        reason = f"replayed the recorded plan for {', '.join(what)}; digests equal"
        record_event(tx, "repaired", reason, stage=row.stage, epoch=epoch, generation=row.generation)


def safe_point(tx: Connection, stage: str, tier: str) -> int:
    """The highest epoch whose files, and all below it, have reached a tier; -1 before the first."""
    table = schema.tiers
    found = tx.execute(
        sa.select(table.c.safe).where(table.c.stage == stage, table.c.tier == tier)
    ).scalar_one_or_none()
    return -1 if found is None else int(found)


def needed_of(tx: Connection, row: StageRow) -> dict[str, int]:
    """By input, the first position that the stage may ask for again."""
    cursors = schema.cursors
    found = tx.execute(
        sa.select(cursors.c.input, cursors.c.needed).where(cursors.c.consumer == f"stage:{row.stage}")
    )
    return {name: int(needed) for name, needed in found}


def settle(ledger: Ledger, row: StageRow, safe: Mapping[str, int], needed: Mapping[str, int]) -> None:
    """Say that all files up to an epoch have reached a tier, and which inputs are therefore done with."""
    table, cursors = schema.tiers, schema.cursors
    with ledger.write(row.generation) as tx:
        for tier, epoch in safe.items():
            tx.execute(sa.delete(table).where(table.c.stage == row.stage, table.c.tier == tier))
            tx.execute(sa.insert(table).values(stage=row.stage, tier=tier, safe=epoch))
        for name, position in needed.items():
            mine = (cursors.c.consumer == f"stage:{row.stage}", cursors.c.input == name)
            tx.execute(sa.update(cursors).where(*mine).values(needed=position))


def mark_lost(
    ledger: Ledger, row: StageRow, layer_ids: Sequence[int], segment_ids: Sequence[int], why: str
) -> None:
    """Record that named files are not there, before anything is done about it.

    What the sweeper has condemned since they were looked for is not lost: it was let go.
    """
    with ledger.write(row.generation) as tx:
        if _restated(tx, layer_ids, segment_ids, "live", "lost"):
            record_event(tx, "lost", why, stage=row.stage, generation=row.generation)


def _restated(
    tx: Connection, layer_ids: Sequence[int], segment_ids: Sequence[int], before: str, after: str
) -> int:
    """Give files another status if they have the one that is expected; how many had it."""
    changed = 0
    for table, ids in ((schema.layers, layer_ids), (schema.segments, segment_ids)):
        if ids:
            expected = table.c.id.in_(list(ids)), table.c.status == before
            changed += tx.execute(sa.update(table).where(*expected).values(status=after)).rowcount
    return changed


def lost_layers(tx: Connection, row: StageRow) -> list[LayerRow]:
    """Layers whose files are not there."""
    return _layers(tx, row, "lost")


def lost_segments(tx: Connection, row: StageRow) -> list[tuple[int, list[Json]]]:
    """Segments whose files are not there, and the files."""
    table = schema.segments
    mine = (table.c.stage == row.stage, table.c.branch == row.branch, table.c.status == "lost")
    return [(i, found) for i, found in tx.execute(sa.select(table.c.id, table.c.files).where(*mine))]


def mark_found(
    ledger: Ledger, row: StageRow, layer_ids: Sequence[int], segment_ids: Sequence[int], where: str
) -> None:
    """Files that were lost are there again, brought back from a mirror."""
    with ledger.write(row.generation) as tx:
        _restated(tx, layer_ids, segment_ids, "lost", "live")
        reason = f"{len(layer_ids)} layers and {len(segment_ids)} segments were brought back from {where}"
        record_event(tx, "restored", reason, stage=row.stage, generation=row.generation)


def lost_epochs(tx: Connection, row: StageRow) -> list[int]:
    """Epochs with a lost segment."""
    table = schema.segments
    mine = (table.c.stage == row.stage, table.c.branch == row.branch, table.c.status == "lost")
    return sorted(set(tx.execute(sa.select(table.c.epoch).where(*mine)).scalars()))


def condemn(
    ledger: Ledger,
    row: StageRow,
    layer_ids: Sequence[int],
    segment_ids: Sequence[int],
    needed_from: Callable[[Connection], int] | None = None,
) -> None:
    """Let go of files that nobody can need again; from here on nothing may name them. What is pinned stays.

    `needed_from` says from which epoch on segments are needed now: somebody may have begun to read them since the caller
    looked.
    """
    with ledger.write(row.generation) as tx:
        held = pinned(tx)
        layers, segments = set(layer_ids) - held.layers, set(segment_ids) - held.segments
        if segments and needed_from is not None:
            segments &= _ids_below(tx, row, needed_from(tx))
        for table, ids in ((schema.layers, layers), (schema.segments, segments)):
            if ids:
                tx.execute(sa.update(table).where(table.c.id.in_(sorted(ids))).values(status="condemned"))


def _ids_below(tx: Connection, row: StageRow, epoch: int) -> set[int]:
    table = schema.segments
    mine = (table.c.stage == row.stage, table.c.branch == row.branch, table.c.epoch < epoch)
    return set(tx.execute(sa.select(table.c.id).where(*mine)).scalars())


def condemned(
    tx: Connection, stage: str
) -> tuple[list[tuple[int, list[Json]]], list[tuple[int, list[Json]]]]:
    """Condemned layers and segments of a stage, with their files."""
    layers, segments = schema.layers, schema.segments
    runs = tx.execute(
        sa.select(layers.c.id, layers.c.runs).where(layers.c.stage == stage, layers.c.status == "condemned")
    )
    files = tx.execute(
        sa.select(segments.c.id, segments.c.files).where(
            segments.c.stage == stage, segments.c.status == "condemned"
        )
    )
    return [(i, r) for i, r in runs], [(i, f) for i, f in files]


def forget(ledger: Ledger, generation: int, layer_ids: Sequence[int], segment_ids: Sequence[int]) -> None:
    """Drop the rows of files that have been unlinked."""
    with ledger.write(generation) as tx:
        for table, ids in ((schema.layers, layer_ids), (schema.segments, segment_ids)):
            if ids:
                tx.execute(sa.delete(table).where(table.c.id.in_(list(ids))))


def spent_attempts(tx: Connection, row: StageRow) -> list[tuple[str, bool]]:
    """Attempts that are over and of which no file is named any more: their directories may go whole.

    With each, whether its row may go too: the attempts at an epoch are counted when it commits.
    """
    attempts = schema.attempts
    named = sa.union(
        *(
            sa.select(table.c.attempt).where(table.c.stage == row.stage)
            for table in (schema.layers, schema.segments)
        )
    )
    # Of members that race for an epoch, one commits it; the others' attempts never will be, also if they are dead.
    beaten = sa.and_(attempts.c.kind == "epoch", attempts.c.epoch <= row.head)
    found = tx.execute(
        sa.select(attempts.c.attempt, attempts.c.epoch <= row.head).where(
            attempts.c.stage == row.stage,
            sa.or_(attempts.c.status != "open", beaten),
            attempts.c.attempt.not_in(named),
        )
    )
    return [(attempt, bool(counted)) for attempt, counted in found]


def forget_attempts(ledger: Ledger, generation: int, attempts: Sequence[str]) -> None:
    """Drop the rows of attempts whose directories are gone."""
    table = schema.attempts
    with ledger.write(generation) as tx:
        tx.execute(sa.delete(table).where(table.c.attempt.in_(list(attempts))))


def fold_history(ledger: Ledger, row: StageRow, below: int) -> None:
    """Forget plans and manifests that lie further back than replay may reach."""
    with ledger.write(row.generation) as tx:
        for table in (schema.plans, schema.manifests):
            mine = (table.c.stage == row.stage, table.c.branch == row.branch)
            tx.execute(sa.delete(table).where(*mine, table.c.epoch < below))


def oldest_manifest(tx: Connection, row: StageRow) -> int | None:
    """The first epoch whose manifest is still kept."""
    table = schema.manifests
    mine = (table.c.stage == row.stage, table.c.branch == row.branch)
    return tx.execute(sa.select(sa.func.min(table.c.epoch)).where(*mine)).scalar_one_or_none()
