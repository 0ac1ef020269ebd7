"""What a manifest says of event time: how far it has come, what is held back, and what went another way."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.json import Json
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome

Holds = list[tuple[int, int]]


def event_time_of(
    stage: BoundStage, plan: EpochPlan, outcome: Outcome, before: Json, inputs_frontier_us: int | None
) -> Json:
    """The event-time part of an epoch's manifest; `before` is the manifest of the epoch before."""
    holds = _holds(stage, plan, [*map(tuple, before.get("holds", [])), *outcome.holds])
    return {
        "watermark_us": plan.watermark_us,
        "newest_us": _newest(stage, before.get("newest_us", {}), outcome.newest_us),
        "frontier": _frontier(stage, plan, holds, inputs_frontier_us),
        "holds": holds,
        "counts": outcome.counts,
        "totals": _totals(before.get("totals", {}), outcome.counts),
    }


def _newest(stage: BoundStage, before: Json, now: Sequence[int | None]) -> Json:
    """By input, the largest event time of all rows so far."""
    seen = dict(before)
    for feed, newest_us in zip(stage.spec.feeds, now, strict=True):
        if newest_us is not None:
            seen[feed.id] = max(newest_us, seen.get(feed.id, newest_us))
    return seen


def _holds(stage: BoundStage, plan: EpochPlan, holds: Holds) -> Holds:
    """Of each bucket that is still open, the earliest event time of what it holds back."""
    timing = stage.operator.timing if stage.operator else None
    floor = timing.floor(plan.watermark_us) if timing else None
    earliest: dict[int, int] = {}
    for bucket, start in holds:
        if floor is None or bucket >= floor:
            earliest[bucket] = min(start, earliest.get(bucket, start))
    return sorted(earliest.items())


def _frontier(stage: BoundStage, plan: EpochPlan, holds: Holds, inputs_frontier_us: int | None) -> Json:
    """Rows still to come are not below this: by any time inside their window, and by its end."""
    timing = stage.operator.timing if stage.operator else None
    if timing is None or timing.holds_us is None:
        return {"any": inputs_frontier_us, "end": inputs_frontier_us}
    at = timing.frontier(plan.watermark_us, holds)
    if plan.watermark_us is None or not timing.emits_windows:
        return {"any": at, "end": at}
    return {"any": at, "end": timing.floor(plan.watermark_us)}


def _totals(before: Json, counts: Json) -> Json:
    reasons = sorted({*before, *counts})
    return {reason: before.get(reason, 0) + counts.get(reason, 0) for reason in reasons}
