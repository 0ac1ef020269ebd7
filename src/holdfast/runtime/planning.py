"""Makes a stage's next plan: takes what the inputs offer, within bounds, and fixes the shape of the job.

A plan is made when there are rows to read, when the watermark has passed the end of a window that is still open, or when
a substream ends here (such epochs read nothing and only close). What holds no rows and brings about none of these is passed
over without an epoch, so that it never stands before what comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.json import Json
from holdfast.flow.flow_plan import Feed, SinkSpec
from holdfast.flow.prefixes import Input
from holdfast.flow.windows import WINDOW_END
from holdfast.ledger import epochs, files
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow, manifest_of, stage_row
from holdfast.ledger.offers import Offered, offered_epochs, offered_items
from holdfast.ledger.snapshots import released, standing
from holdfast.protocols.admission import Allowance, Offer, admit, holds_back
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.protocols.shape import aggregates_first
from holdfast.protocols.watermark import InputClock, Timing, watermark
from holdfast.runtime import cycles
from holdfast.runtime.context import Runtime
from holdfast.runtime.region import ceilings
from holdfast.runtime.sizing import tasks_of_epoch
from holdfast.runtime.substreams import brings_ends, ends_now, holds_labels, last_end_us
from holdfast.sources.contract import InFiles
from holdfast.spark.bind import BoundStage
from holdfast.spark.keys import even_boundaries
from holdfast.spark.labels import labelling_of_stage


@dataclass(frozen=True)
class _Taken:
    """What an epoch takes of one input."""

    start: int
    stop: int
    rows: int
    empty_until: int  # the first position that holds rows; `stop` if none does
    kept_out: bool = False  # it may hold rows, and waits for a cycle or for the trigger


@dataclass(frozen=True)
class PassOver:
    """Positions that hold no rows, to be left behind without an epoch: by input, from where to where."""

    ranges: Mapping[str, tuple[int, int]]


def next_step(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow
) -> EpochPlan | PassOver | None:
    """The plan of the epoch after the head, or what to pass over; None if there is neither or a consumer is far behind."""
    if rt.script.plans is not None:
        return _scripted(rt, tx, stage, row)
    cycles.check_bounded(rt, tx, stage)
    taken = _all_taken(rt, tx, stage, row)
    if taken is None:
        return None
    return _plan(rt, tx, stage, row, taken) or _passed_over(taken)


def _passed_over(taken: Mapping[Input, _Taken]) -> PassOver | None:
    ranges = {origin.id: (part.start, part.stop) for origin, part in taken.items() if part.stop > part.start}
    return PassOver(ranges) if ranges else None


def _plan(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow, taken: Mapping[Input, _Taken]
) -> EpochPlan | None:
    """The plan of an epoch that takes this, None if there would be nothing to do in it."""
    rows = sum(part.rows for part in taken.values())
    before = manifest_of(tx, row, row.head) or {}
    timing = stage.operator.timing if stage.operator else None
    now_ms = time.time_ns() // 1_000_000
    reached = _watermark(rt, tx, stage, timing, taken, before, now_ms) if timing else None
    ranges = {origin.id: (part.start, part.stop) for origin, part in taken.items()}
    if _is_drained(rt, tx, stage, rows):
        # What is closed then is closed for good: rows of these windows are late from now on.
        last = last_end_us(rt, tx, stage)
        reached = reached if last is None else max(last, reached or last)
        ends = ends_now(rt, tx, stage, row, reached, drained=True)
    else:
        ends = ends_now(rt, tx, stage, row, reached, drained=False)
    if rows == 0 and not (ends or brings_ends(rt, tx, stage, ranges)):
        if timing is None or not timing.emits_at_close:
            return None
        reached = _closing_watermark(rt, tx, stage, row, timing, reached, before)
        if reached is None:
            return None
    tasks = tasks_of_epoch(rt, tx, row, timing, rows, reached, before)
    return EpochPlan(
        ranges,
        rows,
        tuple(even_boundaries(tasks)),
        aggregates_first(before.get("rows_in", 0), before.get("keys", 0) or limits.EPOCH_ROWS_MAX),
        stage.fingerprint,
        now_ms,
        reached,
        timing.floor(before.get("watermark_us")) if timing else None,
        rt.direct and stage.direct and tasks <= limits.DIRECT_TASKS_MAX and _all_direct(rt, tx, taken),
        ends,
    )


def _scripted(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow
) -> EpochPlan | PassOver | None:
    """The recorded plan, unless the stage has to wait for a snapshot, or for what is fed back; or what lies before it."""
    body, bounds = rt.script.plan(tx, row), ceilings(rt, tx, row)
    if bounds is None:
        return None
    if body is None:
        return _passed_over_to(tx, stage, bounds, rt.script.starts(row))
    if "skip" in body or not cycles.reads_durable(rt, tx, stage, body["ranges"]):
        return None
    return EpochPlan.from_json(body)


def _passed_over_to(
    tx: sa.Connection, stage: BoundStage, bounds: Mapping[str, int], starts: Mapping[str, int]
) -> PassOver | None:
    """What was passed over before the recorded plan, whose ranges start behind it; without one, all that holds no rows."""
    ranges = {}
    for origin in stage.spec.inputs:
        offered = _offered(tx, stage, origin)
        stop = min([offered.empty_until, *(of[origin.id] for of in (bounds, starts) if origin.id in of)])
        if stop > offered.start:
            ranges[origin.id] = (offered.start, stop)
    return PassOver(ranges) if ranges else None


def _all_taken(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow
) -> dict[Input, _Taken] | None:
    """What an epoch takes of its inputs, first of what comes back; None if the stage has to wait."""
    bounds = ceilings(rt, tx, row) if _producers_known(rt, tx, stage) else None
    if bounds is None or _is_held_back(rt, tx, row):
        return None
    kept_out = cycles.kept_out(rt, tx, stage) | rt.ticks.kept_out(tx, stage.spec, row)
    return {
        origin: _take(rt, tx, stage, origin, bounds.get(origin.id), origin in kept_out)
        for origin in cycles.first_fed_back(stage)
    }


def has_work(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether a stage has an epoch to finish, to begin, or to skip as its script says."""
    row = stage_row(tx, stage.name)
    if epochs.open_plan(tx, row) is not None or next_step(rt, tx, stage, row) is not None:
        return True
    if rt.script.plans is not None:
        # What waits for a snapshot is the snapshot's to finish; what waits for rows to be durable is under way.
        return rt.script.plan(tx, row) is not None and ceilings(rt, tx, row) is not None
    return cycles.comes_back(rt, tx, stage)


def is_timed(rt: Runtime, stage: BoundStage) -> bool:
    """Whether the clock alone can bring a stage work: a source that falls silent, keys that expire."""
    timing = stage.operator.timing if stage.operator else None
    silent = any(source.idle_after_us is not None for source in rt.plan.sources.values())
    return timing is not None and (silent or (not timing.columns and timing.emits_at_close))


def is_behind(tx: sa.Connection, sink: SinkSpec) -> bool:
    """Whether a sink has not been given all that may leave its stage."""
    last = released(tx, stage_row(tx, sink.stage))
    return ledger_inputs.processed(tx, f"sink:{sink.name}", sink.input.id) <= last


def _all_direct(rt: Runtime, tx: sa.Connection, taken: Mapping[Input, _Taken]) -> bool:
    """Whether all that an epoch takes lies in files that tasks can read; segments always do."""
    for origin, part in taken.items():
        if origin.kind == "source":
            source = rt.sources[origin.name]
            items = ledger_inputs.items(tx, origin.name, part.empty_until, part.stop)
            if origin.port or not isinstance(source, InFiles) or not source.direct(items):
                return False
    return True


def frontier_of_inputs(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, read: Mapping[str, int]
) -> int | None:
    """The event time down to which producers still hold back rows, once inputs have been read up to these positions."""
    found = [
        _frontier(rt, tx, origin, read[origin.id], "any")
        for origin in stage.spec.inputs
        if origin.kind == "channel" and origin not in stage.spec.feedback
    ]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _is_held_back(rt: Runtime, tx: sa.Connection, row: StageRow) -> bool:
    """Whether somebody who reads the stage is far behind; who is fed back to holds nobody back."""
    return any(
        _far_behind(rt, tx, reader, row, port)
        for reader, port in rt.plan.readers(row.stage)
        if not cycles.is_fed_back(rt.plan, reader, row.stage, port)
    )


def _far_behind(rt: Runtime, tx: sa.Connection, consumer: str, row: StageRow, port: str) -> bool:
    """Whether a consumer has much to read; what waits for a snapshot to let it out is nobody's burden."""
    inside = row.stage in rt.region and consumer.removeprefix("stage:") in rt.region
    last = row.head if inside else released(tx, row)
    return holds_back(*ledger_inputs.unread_size(tx, [consumer], row.stage, port, last))


def _producers_known(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether the stages of other workers that a stage reads have been run at all."""
    elsewhere = [i.name for i in stage.spec.inputs if i.kind == "channel" and i.name not in rt.own]
    return not elsewhere or epochs.all_registered(tx, elsewhere)


def _take(
    rt: Runtime, tx: sa.Connection, stage: BoundStage, origin: Input, ceiling: int | None, kept_out: bool
) -> _Taken:
    """Of one input: all that holds no rows, and behind it what an epoch may take."""
    offered = _offered(tx, stage, origin)
    start = offered.start
    if kept_out:
        return _Taken(start, start, 0, start, kept_out=True)
    end = offered.stop if ceiling is None else max(start, min(offered.stop, ceiling))
    units = [unit for unit in offered.units if unit.position < end]
    if origin in stage.spec.feedback:
        units = cycles.durable(rt, tx, origin, units)
    taken = units[: admit([Offer(unit.rows, unit.bytes) for unit in units], _allowance(rt, origin))]
    empty_until = min(offered.empty_until, end)
    stop = taken[-1].position + 1 if taken else empty_until
    return _Taken(start, stop, sum(unit.rows for unit in taken), empty_until)


def _watermark(
    rt: Runtime,
    tx: sa.Connection,
    stage: BoundStage,
    timing: Timing,
    taken: Mapping[Input, _Taken],
    before: Json,
    now_ms: int,
) -> int | None:
    """By what was committed before: rows of this epoch cannot move the watermark that judges them."""
    if not timing.columns:
        return max(now_ms * 1_000, before.get("watermark_us") or 0)
    newest = before.get("newest_us", {})
    clocks = [
        InputClock(
            newest.get(feed.id),
            _frontier(rt, tx, feed.input, taken[feed.input].empty_until, _column(stage, feed, timing)),
            idle=not (taken[feed.input].rows or taken[feed.input].kept_out) and _idle(rt, tx, feed.input),
        )
        for feed in stage.spec.feeds
        if feed.input not in stage.spec.feedback
    ]
    return watermark(before.get("watermark_us"), clocks, timing.late_us)


def _closing_watermark(
    rt: Runtime,
    tx: sa.Connection,
    stage: BoundStage,
    row: StageRow,
    timing: Timing,
    reached: int | None,
    before: Json,
) -> int | None:
    """The watermark of an epoch that reads nothing, None if it would close nothing."""
    last: int | None = before.get("watermark_us")
    draining = bool(timing.columns) and rt.draining.is_set() and _ended(rt, tx, stage)
    if not draining and (reached is None or reached == last):
        return None
    spine, _ = files.cover(files.live_layers(tx, row), row.head)
    floor = timing.floor(last)
    buckets = [b for layer in spine for b in layer.buckets if floor is None or b >= floor]
    if not buckets:
        return None
    if draining:
        return max(buckets)
    assert reached is not None
    return reached if min(buckets) <= timing.closing(reached) else None


def _is_drained(rt: Runtime, tx: sa.Connection, stage: BoundStage, rows: int) -> bool:
    """Whether a source of labels has nothing to read, and is not going to have."""
    is_source = labelling_of_stage(stage) is not None
    return is_source and rows == 0 and rt.draining.is_set() and _ended(rt, tx, stage)


def _ended(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether no producer of a stage will commit anything more, but for what closes when the stage itself has closed."""
    names = {o.name for o in stage.spec.inputs if o.kind == "channel" and o not in stage.spec.feedback}
    producers = [rt.stages[name] for name in sorted(names)]
    return _cycle_rests(rt, tx, stage) and all(
        _settled(rt, tx, producer) and _ended(rt, tx, producer) for producer in producers
    )


def _cycle_rests(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether no stage of a cycle has an epoch under way or rows to read."""
    members = [rt.stages[name] for name in rt.plan.cycle_of(stage.name)]
    return all(
        epochs.open_plan(tx, stage_row(tx, member.name)) is None
        and not any(_offered(tx, member, origin).rows for origin in member.spec.inputs)
        for member in members
    )


def _settled(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    row = stage_row(tx, stage.name)
    unfinished = epochs.open_plan(tx, row) is not None or cycles.comes_back(rt, tx, stage)
    if unfinished or next_step(rt, tx, stage, row) is not None:
        return False
    return not holds_labels(rt, tx, stage)


def _idle(rt: Runtime, tx: sa.Connection, origin: Input) -> bool:
    """Whether an input that offers nothing has been silent for longer than the flow wants to wait for it."""
    if origin.kind == "source":
        idle_after_us = rt.plan.sources[origin.name].idle_after_us
        return idle_after_us is not None and rt.silent_us(origin.name) >= idle_after_us
    producer = rt.stages[origin.name]
    if epochs.open_plan(tx, stage_row(tx, producer.name)) is not None:
        return False
    # What comes back is as silent as the rest of the cycle, once nothing of it is unread.
    return all(
        not _offered(tx, producer, upstream).rows
        and (upstream in producer.spec.feedback or _idle(rt, tx, upstream))
        for upstream in producer.spec.inputs
    )


def _column(stage: BoundStage, feed: Feed, timing: Timing) -> str:
    """Which of a producer's frontiers holds for the time column: that of window ends only if it is just that."""
    is_end = timing.columns[feed.side] == WINDOW_END
    return "end" if is_end and stage.spec.reads_as_is(feed.input, feed.side) else "any"


def _frontier(rt: Runtime, tx: sa.Connection, origin: Input, position: int, column: str) -> int | None:
    """What a producer's manifest before a position says of the rows that are still to come from it.

    One that only hands on what it reads has passed over what its own producers left empty since its last epoch; they may
    have come further in time there.
    """
    if origin.kind == "source":
        return None
    row, producer = stage_row(tx, origin.name), rt.stages[origin.name]
    timing = producer.operator.timing if producer.operator else None
    if position > row.head and (timing is None or timing.holds_us is None):
        return frontier_of_inputs(rt, tx, producer, standing(tx, row).positions)
    manifest = manifest_of(tx, row, position - 1) or {}
    found: int | None = manifest.get("frontier", {}).get(column)
    return found


def _offered(tx: sa.Connection, stage: BoundStage, origin: Input) -> Offered:
    start = ledger_inputs.processed(tx, f"stage:{stage.name}", origin.id)
    if origin.kind == "source":
        return offered_items(tx, origin.name, start)
    return offered_epochs(tx, origin.name, origin.port, start)


def _allowance(rt: Runtime, origin: Input) -> Allowance:
    if origin.kind == "channel":
        return Allowance()
    items, rows = rt.sources[origin.name].epoch_limits()
    return Allowance(items, rows or limits.EPOCH_ROWS_MAX)
