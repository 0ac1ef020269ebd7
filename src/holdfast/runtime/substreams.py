"""What an epoch's manifest says of substreams, and which of them an epoch is to end.

Both are made from what the ledger holds: a stage has consumed what the manifests that it read say was sent to it, and is
told to end a label when the tracker says that nothing of it can reach it any more. Nothing comes from nothing: a stage
that gives out rows of a label that it neither read nor held is stopped before it commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.core.json import Json
from holdfast.flow.substreams import SUBSTREAM
from holdfast.ledger import substreams as ledger_substreams
from holdfast.ledger.epochs import StageRow, manifest_of, stage_row
from holdfast.ledger.substreams import SINK, Incoming, incoming
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.protocols.message_numbers import Carried, Segment, Tally, merged, tally
from holdfast.protocols.substreams import Change, Node, Report
from holdfast.runtime.context import Runtime
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome
from holdfast.spark.labels import Scope, ends_keys, labelling_of_stage

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class _Touched:
    """What an epoch did to labels."""

    consumed: Mapping[str, Tally]
    sent: Mapping[str, Mapping[str, Tally]]  # by reader
    ends: Mapping[str, tuple[Node, ...]]  # by label, the producers whose end the epoch has read
    held: Mapping[str, int]  # by label that windows hold back, the last bucket

    @property
    def emitted(self) -> dict[str, Tally]:
        return merged(self.sent.values())


def substreams_of(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow, plan: EpochPlan, outcome: Outcome
) -> Json:
    """The part of an epoch's manifest that is about substreams; nothing where no labels pass."""
    scope = rt.labels.scope_of(stage.name)
    if scope is None:
        return {}
    held = _held(tx, row)
    touched = _touched(rt, tx, scope, stage, row, plan, outcome, held)
    if labelling_of_stage(stage) is None:
        _check_caused(stage, row, {*touched.consumed, *held, *plan.ends}, touched.emitted)
    known = ledger_substreams.waiting(tx, scope.name).due.get(stage.name, ())
    changes = _changes(scope, stage, plan, outcome, touched, held, known)
    return _body(scope, row, changes, touched)


def skipped_of(rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow, ranges: Ranges) -> Json:
    """The same for an epoch that gives up the state and some input: it has had all of it, and holds nothing."""
    scope = rt.labels.scope_of(stage.name)
    if scope is None:
        return {}
    came = _incoming(tx, scope, stage, ranges)
    consumed = merged(one.messages for one in came.values())
    held = _held_by_tracker(tx, scope, stage)
    changes = [
        Change(label, *_consumption(consumed.get(label)), ends=_ends(scope, came).get(label, ()))
        for label in sorted({*consumed, *held, *_ends(scope, came)})
    ]
    return _body(scope, row, changes, _Touched(consumed, {}, {}, {}))


def ends_now(
    rt: Runtime,
    tx: sa.Connection,
    stage: BoundStage,
    row: StageRow,
    watermark_us: int | None,
    drained: bool,
) -> tuple[str, ...]:
    """Labels that the next epoch of a stage closes or ends; all that a source knows of once its input is drained."""
    scope = rt.labels.scope_of(stage.name)
    if scope is None:
        return ()
    due = ledger_substreams.waiting(tx, scope.name).due.get(stage.name, ())
    labelling = labelling_of_stage(stage)
    if labelling is not None:
        ends = [(label, labelling.end_us(label)) for label in due]
        passed = [e is not None and watermark_us is not None and e <= watermark_us for _, e in ends]
        due = (
            due
            if drained
            else tuple(label for (label, _), is_over in zip(ends, passed, strict=True) if is_over)
        )
    elif not ends_keys(stage):
        due = tuple(label for label in due if label not in _held(tx, row)) if scope.punctuates else ()
    return due[: limits.ENDS_PER_EPOCH_MAX]


def last_end_us(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> int | None:
    """Where the last window ends that a source has not closed; None if there is none, or labels have no time."""
    scope, labelling = rt.labels.scope_of(stage.name), labelling_of_stage(stage)
    if scope is None or labelling is None:
        return None
    due = ledger_substreams.waiting(tx, scope.name).due.get(stage.name, ())
    return max((end for label in due if (end := labelling.end_us(label)) is not None), default=None)


def holds_labels(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether a stage has rows of a substream still to give out, though it may have nothing to do just now."""
    scope = rt.labels.scope_of(stage.name)
    return scope is not None and stage.name in ledger_substreams.waiting(tx, scope.name).held


def brings_ends(rt: Runtime, tx: sa.Connection, stage: BoundStage, ranges: Ranges) -> bool:
    """Whether unread epochs carry ends to a stage, which have to be read even if no rows come with them."""
    scope = rt.labels.scope_of(stage.name)
    if scope is None or not scope.punctuates:
        return False
    return any(one.closed for one in _incoming(tx, scope, stage, ranges).values())


def _touched(
    rt: Runtime,
    tx: sa.Connection,
    scope: Scope,
    stage: BoundStage,
    row: StageRow,
    plan: EpochPlan,
    outcome: Outcome,
    held: Mapping[str, int],
) -> _Touched:
    came = _incoming(tx, scope, stage, plan.ranges)
    still = {**held, **{k: max(v, held.get(k, v)) for k, v in outcome.held.items()}}
    open_still = {k: v for k, v in still.items() if plan.watermark_us is None or v > plan.watermark_us}
    return _Touched(
        merged(one.messages for one in came.values()),
        _sent(rt, scope, stage, row, outcome),
        _ends(scope, came),
        open_still,
    )


def _changes(
    scope: Scope,
    stage: BoundStage,
    plan: EpochPlan,
    outcome: Outcome,
    touched: _Touched,
    held: Mapping[str, int],
    known: Collection[str],
) -> list[Change]:
    emitted, consumed, ended = touched.emitted, touched.consumed, {*plan.ends, *outcome.closing}
    if scope.punctuates:
        # Ends are all that travels; but a source tells of a label when it first has one.
        new = set(emitted) - set(known) if labelling_of_stage(stage) is not None else set()
        labels = {*touched.ends, *ended, *new}
        return [
            Change(label, closed=label in ended, ends=touched.ends.get(label, ())) for label in sorted(labels)
        ]
    closes = labelling_of_stage(stage) is not None
    holding = set(consumed) - ended if ends_keys(stage) else set(touched.held)
    let_go = set(held) - holding
    return [
        Change(
            label,
            _xor(emitted.get(label), consumed.get(label)),
            _count(emitted.get(label)),
            _count(consumed.get(label)),
            label in holding,
            closes and label in ended,
        )
        for label in sorted({*emitted, *consumed, *ended, *let_go})
    ]


def _body(scope: Scope, row: StageRow, changes: Iterable[Change], touched: _Touched) -> Json:
    epoch = row.head + 1
    report = Report(row.branch, Node(row.stage), epoch, epoch - 1, tuple(changes))
    sent = {
        reader: {label: [f"{one.number:016x}", one.messages] for label, one in tallies.items()}
        for reader, tallies in touched.sent.items()
    }
    held = {"held": dict(touched.held)} if touched.held else {}
    return {"substreams": {"scope": scope.name, "report": report.to_json(), "sent": sent, **held}}


def _sent(
    rt: Runtime, scope: Scope, stage: BoundStage, row: StageRow, outcome: Outcome
) -> dict[str, dict[str, Tally]]:
    """By reader, the messages of an epoch: what each segment carries of each label."""
    places: dict[str, list[tuple[int, list[str]]]] = {}
    position = 0
    for port in sorted(outcome.labels):
        places[port] = list(enumerate(outcome.labels[port], position))
        position += len(outcome.labels[port])
    sent = {}
    for consumer, port in rt.plan.readers(stage.name):
        node = consumer if consumer.startswith(SINK) else consumer.partition(":")[2]
        if node in scope.graph.stages and places.get(port):
            sent[node] = tally(_key(rt), _carried(row, places[port], node))
    return sent


def _carried(row: StageRow, places: Iterable[tuple[int, list[str]]], reader: str) -> Carried:
    me, epoch = Node(row.stage), row.head + 1
    return Carried.of(
        (Segment(row.branch, me, epoch, position, Node(reader)), label)
        for position, labels in places
        for label in labels
    )


def _key(rt: Runtime) -> bytes:
    """BLAKE2b takes at most 64 bytes of key."""
    return rt.plan.name.encode()[:64]


def _incoming(tx: sa.Connection, scope: Scope, stage: BoundStage, ranges: Ranges) -> dict[str, Incoming]:
    """By producer of labelled rows, what the ranges of an epoch carry."""
    found = {}
    for origin in stage.spec.inputs:
        if origin.kind == "channel" and origin.name in scope.graph.stages[stage.name].reads:
            branch = stage_row(tx, origin.name).branch
            found[origin.name] = incoming(tx, origin.name, branch, *ranges[origin.id], stage.name)
    return found


def _ends(scope: Scope, came: Mapping[str, Incoming]) -> dict[str, tuple[Node, ...]]:
    if not scope.punctuates:
        return {}
    labels = sorted({label for one in came.values() for label in one.closed})
    return {label: tuple(Node(name) for name, one in came.items() if label in one.closed) for label in labels}


def _held(tx: sa.Connection, row: StageRow) -> dict[str, int]:
    """By label that windows hold back after the last epoch, the last bucket that has to close."""
    before = manifest_of(tx, row, row.head) or {}
    held: dict[str, int] = before.get("substreams", {}).get("held", {})
    return held


def _held_by_tracker(tx: sa.Connection, scope: Scope, stage: BoundStage) -> set[str]:
    if scope.punctuates:
        return set()
    me = Node(stage.name)
    shards = ledger_substreams.trackers(tx, scope.name)
    return {
        label for shard in shards for label in shard.open_labels() if me in shard.waits_for(label).holders
    }


def _check_caused(stage: BoundStage, row: StageRow, caused: Collection[str], emitted: Iterable[str]) -> None:
    strange = sorted(set(emitted) - set(caused))
    if strange:
        raise FlowError(
            f"it gives out rows of substream {strange[0]!r}, which it has not read or no longer holds",
            operation="label",
            stage=stage.name,
            epoch=row.head + 1,
            hint=f"Let the column {SUBSTREAM!r} pass as it is; name columns of your own otherwise.",
        )


def _consumption(consumed: Tally | None) -> tuple[int, int, int]:
    return (consumed.number, 0, consumed.messages) if consumed else (0, 0, 0)


def _xor(*tallies: Tally | None) -> int:
    number = 0
    for one in tallies:
        number ^= one.number if one else 0
    return number


def _count(one: Tally | None) -> int:
    return one.messages if one else 0
