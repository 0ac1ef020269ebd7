"""Makes a stage's next plan: takes what the inputs offer, within bounds, and fixes the shape of the job.

A plan is made when there are rows to read, when the watermark has passed the end of a window that is still open, or when
a substream ends here: such an epoch reads nothing and only closes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.core import limits
from holdfast.core.json import Json
from holdfast.flow.planner import Feed, Input, SinkSpec
from holdfast.flow.windows import WINDOW_END
from holdfast.ledger import epochs, files
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow, manifest_of, stage_row
from holdfast.protocols.admission import Allowance, Offer, admit, holds_back
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.protocols.shape import aggregates_first
from holdfast.protocols.watermark import InputClock, Timing, watermark
from holdfast.runtime.context import Runtime
from holdfast.runtime.substreams import brings_ends, ends_now, holds_labels, last_end_us
from holdfast.sources.contract import InFiles
from holdfast.spark.bind import BoundStage
from holdfast.spark.keys import even_boundaries
from holdfast.spark.labels import labelling_of_stage

# Positions that one look at an input considers; an epoch that could take more takes them next time.
_OFFERS_MAX = 1_000


@dataclass(frozen=True)
class _Taken:
    """What an epoch takes of one input."""

    start: int
    stop: int
    rows: int
    empty_until: int  # the first position that holds rows; `stop` if none does


def next_plan(rt: Runtime, tx: sa.Connection, stage: BoundStage, row: StageRow) -> EpochPlan | None:
    """The plan of the epoch after the head, or None if there is nothing to do or a consumer is far behind."""
    if rt.script.plans is not None:
        body = rt.script.plan(tx, row)
        return EpochPlan.from_json(body) if body and "skip" not in body else None
    if any(
        _far_behind(tx, sink_or_stage, stage, port) for sink_or_stage, port in rt.plan.readers(stage.name)
    ):
        return None
    taken = {origin: _take(rt, tx, stage, origin) for origin in stage.spec.inputs}
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
    if rows == 0 and not ends and not brings_ends(rt, tx, stage, ranges):
        if timing is None or not timing.emits_at_close:
            return None
        reached = _closing_watermark(rt, tx, stage, row, timing, reached, before)
        if reached is None:
            return None
    return EpochPlan(
        ranges,
        rows,
        tuple(even_boundaries(rt.tasks)),
        aggregates_first(before.get("rows_in", 0), before.get("keys", 0) or limits.EPOCH_ROWS_MAX),
        stage.fingerprint,
        now_ms,
        reached,
        timing.floor(before.get("watermark_us")) if timing else None,
        rt.direct and stage.direct and rt.tasks <= limits.DIRECT_TASKS_MAX and _all_direct(rt, tx, taken),
        ends,
    )


def has_work(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    """Whether a stage has an epoch to finish, to begin, or to skip as its script says."""
    row = stage_row(tx, stage.name)
    if epochs.open_plan(tx, row) is not None or next_plan(rt, tx, stage, row) is not None:
        return True
    return rt.script.plans is not None and rt.script.plan(tx, row) is not None


def is_timed(rt: Runtime, stage: BoundStage) -> bool:
    """Whether the clock alone can bring a stage work: a source that falls silent, keys that expire."""
    timing = stage.operator.timing if stage.operator else None
    silent = any(source.idle_after_us is not None for source in rt.plan.sources.values())
    return timing is not None and (silent or (not timing.columns and timing.emits_at_close))


def is_behind(tx: sa.Connection, sink: SinkSpec) -> bool:
    """Whether a sink has not been given all that its stage has committed."""
    return ledger_inputs.processed(tx, f"sink:{sink.name}", sink.input.id) <= stage_row(tx, sink.stage).head


def _all_direct(rt: Runtime, tx: sa.Connection, taken: Mapping[Input, _Taken]) -> bool:
    """Whether all that an epoch takes lies in files that tasks can read; segments always do."""
    for origin, part in taken.items():
        if origin.kind == "source":
            source = rt.sources[origin.name]
            items = ledger_inputs.items(tx, origin.name, part.start, part.stop)
            if origin.port or not isinstance(source, InFiles) or not source.direct(items):
                return False
    return True


def frontier_of_inputs(
    tx: sa.Connection, stage: BoundStage, ranges: Mapping[str, tuple[int, int]]
) -> int | None:
    """The event time down to which producers still hold back rows, once an epoch's ranges have been read."""
    found = [
        _frontier(tx, origin, ranges[origin.id][1], "any")
        for origin in stage.spec.inputs
        if origin.kind == "channel"
    ]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _far_behind(tx: sa.Connection, consumer: str, stage: BoundStage, port: str) -> bool:
    return holds_back(*ledger_inputs.unread_size(tx, [consumer], stage.name, port))


def _take(rt: Runtime, tx: sa.Connection, stage: BoundStage, origin: Input) -> _Taken:
    start, offers = _offers(tx, stage, origin)
    taken = offers[: admit([Offer(unit.rows, unit.bytes) for unit in offers], _allowance(rt, origin))]
    empty = next((i for i, unit in enumerate(taken) if unit.rows), len(taken))
    return _Taken(start, start + len(taken), sum(unit.rows for unit in taken), start + empty)


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
            _frontier(tx, feed.input, taken[feed.input].empty_until, _column(stage, feed, timing)),
            idle=taken[feed.input].rows == 0 and _idle(rt, tx, feed.input),
        )
        for feed in stage.spec.feeds
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
    """Whether no producer of a stage will commit anything more."""
    producers = [rt.stages[origin.name] for origin in stage.spec.inputs if origin.kind == "channel"]
    return all(_settled(rt, tx, producer) and _ended(rt, tx, producer) for producer in producers)


def _settled(rt: Runtime, tx: sa.Connection, stage: BoundStage) -> bool:
    row = stage_row(tx, stage.name)
    if epochs.open_plan(tx, row) is not None or next_plan(rt, tx, stage, row) is not None:
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
    offers = [(upstream, _offers(tx, producer, upstream)[1]) for upstream in producer.spec.inputs]
    return all(not _rows(units) and _idle(rt, tx, upstream) for upstream, units in offers)


def _rows(units: list[ledger_inputs.Unit]) -> int:
    return sum(unit.rows for unit in units)


def _column(stage: BoundStage, feed: Feed, timing: Timing) -> str:
    """Which of a producer's frontiers holds for the time column: that of window ends only if it is just that."""
    is_end = timing.columns[feed.side] == WINDOW_END
    return "end" if is_end and stage.spec.reads_as_is(feed.input, feed.side) else "any"


def _frontier(tx: sa.Connection, origin: Input, position: int, column: str) -> int | None:
    """What a producer's manifest before a position says of the rows that are still to come from it."""
    if origin.kind == "source":
        return None
    manifest = manifest_of(tx, stage_row(tx, origin.name), position - 1) or {}
    found: int | None = manifest.get("frontier", {}).get(column)
    return found


def _offers(tx: sa.Connection, stage: BoundStage, origin: Input) -> tuple[int, list[ledger_inputs.Unit]]:
    start = ledger_inputs.processed(tx, f"stage:{stage.name}", origin.id)
    if origin.kind == "source":
        return start, ledger_inputs.unread_items(tx, origin.name, start, _OFFERS_MAX)
    return start, ledger_inputs.unread_epochs(tx, origin.name, origin.port, start, _OFFERS_MAX)


def _allowance(rt: Runtime, origin: Input) -> Allowance:
    if origin.kind == "channel":
        return Allowance()
    items, rows = rt.sources[origin.name].epoch_limits()
    return Allowance(items, rows or limits.EPOCH_ROWS_MAX)
