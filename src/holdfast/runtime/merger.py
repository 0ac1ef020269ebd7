"""Merges the layers of stages, one merge at a time, in steps of bounded size, beside the epochs.

A merge is not an epoch: it changes which files hold a state, never the state. Its files have reached all tiers before
it commits, so the safe points can pass over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from holdfast.core import crashpoints, limits
from holdfast.core.json import Json
from holdfast.ledger import epochs, files
from holdfast.ledger.epochs import StageRow
from holdfast.ledger.files import LayerRow
from holdfast.protocols.merging import LayerSize, choose_merge
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import layer_info
from holdfast.runtime.progress import MergeSample
from holdfast.runtime.repair import repair
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import SparkJobError, sum_of
from holdfast.spark.merge import MergeStep, run_merge_step
from holdfast.state.merge import merge_ranges
from holdfast.state.run import LostFileError
from holdfast.storage.workdir import attempt_directory


@dataclass
class _Merge:
    """A merge under way."""

    stage: BoundStage
    row: StageRow
    attempt: str
    inputs: list[LayerRow]
    ranges: list[tuple[int, int]]
    floor: int | None
    runs: list[Json] = field(default_factory=list)
    steps: int = 0


class Merger:
    """Drives the merges of all stages of a worker."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._stages = [stage for stage in rt.own_stages if stage.operator is not None]
        self._failures = 0

    def step(self) -> bool:
        """Carry out one whole merge if one is due; whether one was."""
        for stage in self._stages:
            merge = self._due(stage)
            if merge is not None:
                self._carry_out(merge)
                return True
        return False

    def has_work(self, tx: sa.Connection) -> bool:
        """Whether a merge is due, or under way: what it reads is live until it is committed."""
        return any(self._chosen(tx, stage) is not None for stage in self._stages)

    def _chosen(
        self, tx: sa.Connection, stage: BoundStage
    ) -> tuple[StageRow, list[LayerRow], tuple[int, int]] | None:
        row = epochs.own_row(tx, stage.name, self._rt.generation)
        spine, _ = files.cover(files.live_layers(tx, row), row.head)
        gone = _floor(tx, stage, row, row.head)
        chosen = choose_merge([LayerSize(layer.first, layer.last, layer.rows_from(gone)) for layer in spine])
        return None if chosen is None else (row, spine, chosen)

    def _due(self, stage: BoundStage) -> _Merge | None:
        rt = self._rt
        with rt.ledger.read() as tx:
            found = self._chosen(tx, stage)
            if found is None:
                return None
            row, spine, (first, last) = found
            # A merged layer is read for states at or after its last epoch: what had expired by then may go.
            floor = _floor(tx, stage, row, last)
        inputs = [layer for layer in spine if first <= layer.first and layer.last <= last]
        ranges = merge_ranges([layer_info(layer) for layer in inputs], _rows_per_run(inputs))
        attempt = epochs.open_attempt(rt.ledger, row, "merge", last)
        return _Merge(stage, row, attempt, inputs, ranges, floor)

    def _carry_out(self, merge: _Merge) -> None:
        rt = self._rt
        crashpoints.reach("merge.before")
        try:
            with rt.pins.hold(lambda: self._still_live(merge)) as inputs:
                while merge.ranges and len(inputs) == len(merge.inputs) and not rt.stopping.is_set():
                    self._rewrite_next(merge)
                if not merge.ranges:
                    self._commit(merge)
                    self._failures = 0
                    return
        except LostFileError as error:
            repair(rt, error)
        except SparkJobError as error:
            self._failures += 1
            if self._failures >= limits.ATTEMPTS_PER_PLAN_MAX and not rt.stopping.is_set():
                raise error.at(stage=merge.stage.name, epoch=merge.inputs[-1].last) from error.__cause__
        epochs.close_attempt(rt.ledger, merge.row, merge.attempt)

    def _still_live(self, merge: _Merge) -> list[LayerRow]:
        """The inputs that a repair has not replaced since they were chosen."""
        with self._rt.ledger.read() as tx:
            live = {layer.id for layer in files.live_layers(tx, merge.row)}
        return [layer for layer in merge.inputs if layer.id in live]

    def _rewrite_next(self, merge: _Merge) -> None:
        ranges = tuple(merge.ranges[: limits.MERGE_STEP_RUNS_MAX])
        assert merge.stage.operator is not None
        step = MergeStep(
            str(self._rt.root),
            attempt_directory(merge.stage.name, merge.attempt),
            merge.stage.operator.state,
            tuple(layer_info(layer) for layer in merge.inputs),
            ranges,
            bottom=merge.inputs[0].first == 0,
            floor=merge.floor,
        )
        with self._rt.tagged(merge.stage.name, f"merge-{merge.inputs[-1].last}") as tag:
            runs = run_merge_step(self._rt.spark, step, tag)
        # Step by step: one large flush at the end would hold up the ledger's own small ones.
        self._rt.route(merge.stage.name).carry(self._rt.root, [run["path"] for run in runs])
        merge.runs += runs
        del merge.ranges[: len(ranges)]
        merge.steps += 1

    def _commit(self, merge: _Merge) -> None:
        rt = self._rt
        size = sum_of(merge.runs, "bytes")
        layer = {"rows": sum_of(merge.runs, "rows"), "bytes": size, "runs": merge.runs}
        crashpoints.reach("merge.before_commit")
        files.commit_merge(rt.ledger, merge.row, merge.attempt, merge.inputs, layer)
        crashpoints.reach("merge.after_commit")
        sample = MergeSample(merge.inputs[0].first, merge.inputs[-1].last, size, merge.steps)
        rt.progress.merge_done(merge.stage.name, sample)


def _floor(tx: sa.Connection, stage: BoundStage, row: StageRow, epoch: int) -> int | None:
    """Buckets below this are no part of the state at an epoch; None where that is not known any more."""
    timing = stage.operator.timing if stage.operator else None
    manifest = epochs.manifest_of(tx, row, epoch) if timing else None
    return timing.floor(manifest["watermark_us"]) if timing and manifest else None


def _rows_per_run(inputs: Sequence[LayerRow]) -> int:
    """How many rows of this state a run may hold, by rows and by bytes."""
    rows, size = sum(layer.rows for layer in inputs), sum(layer.bytes for layer in inputs)
    return max(1, min(limits.RUN_ROWS_MAX, limits.RUN_BYTES_MAX * rows // max(size, 1)))
