"""The life of a stage: plan, run one Spark job, commit; again and again.

Invariants: one open plan at a time, finished before another is made; an attempt that fails leaves nothing
visible, and is tried again a bounded number of times; a lost file is repaired before the attempt is tried
again, and costs no try.
"""

from __future__ import annotations

import time

from holdfast.core import crashpoints, limits
from holdfast.core.errors import HoldfastError
from holdfast.ledger import epochs, files
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.event_time import event_time_of
from holdfast.runtime.execution import execute, layer_info
from holdfast.runtime.planning import frontier_of_inputs, next_plan
from holdfast.runtime.progress import EpochSample
from holdfast.runtime.repair import repair
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome, SparkJobError
from holdfast.state.run import LostFileError


class StageLoop:
    """Runs the epochs of one stage."""

    def __init__(self, rt: Runtime, stage: BoundStage) -> None:
        self._rt = rt
        self._stage = stage

    def step(self) -> bool:
        """Finish one epoch if there is one to do; whether there was."""
        started = time.perf_counter()
        planned = self._planned()
        if planned is None:
            return False
        row, plan, attempt = planned
        try:
            outcome, attempt = self._run(row, plan, attempt)
            self._commit(row, plan, attempt, outcome, started)
        except HoldfastError as error:
            raise error.at(stage=self._stage.name, epoch=row.head + 1) from error.__cause__
        return True

    def _planned(self) -> tuple[StageRow, EpochPlan, str] | None:
        rt, stage = self._rt, self._stage
        with rt.ledger.read() as tx:
            row = epochs.own_row(tx, stage.name, rt.generation)
            body = epochs.open_plan(tx, row)
            plan = EpochPlan.from_json(body) if body else next_plan(rt, tx, stage, row)
        if plan is None:
            return None
        crashpoints.reach("plan.before")
        if body and plan.fingerprint == stage.fingerprint:
            attempt = epochs.open_attempt(rt.ledger, row, "epoch", row.head + 1)
        else:
            plan = plan.with_fingerprint(stage.fingerprint)
            row, attempt = epochs.record_plan(rt.ledger, row, plan.to_json())
        crashpoints.reach("plan.after")
        return row, plan, attempt

    def _run(self, row: StageRow, plan: EpochPlan, attempt: str) -> tuple[Outcome, str]:
        """Try until an attempt succeeds; what fails for good is raised as it is."""
        tries = 0
        while True:
            try:
                return self._try(row, plan, attempt), attempt
            except (LostFileError, SparkJobError) as error:
                epochs.close_attempt(self._rt.ledger, row, attempt)
                if isinstance(error, LostFileError):
                    repair(self._rt, error)
                else:
                    tries += 1
                    if tries >= limits.ATTEMPTS_PER_PLAN_MAX or self._rt.stopping.is_set():
                        raise
                attempt = epochs.open_attempt(self._rt.ledger, row, "epoch", row.head + 1)

    def _try(self, row: StageRow, plan: EpochPlan, attempt: str) -> Outcome:
        rt, epoch = self._rt, row.head + 1
        with rt.ledger.read() as tx:
            spine, reached = files.cover(files.live_layers(tx, row), epoch - 1)
        if self._stage.operator is not None and reached != epoch:
            raise LostFileError(f"layer of {self._stage.name} epoch {reached}", "it was marked lost")
        with rt.pins.hold([layer.id for layer in spine]):
            return execute(rt, self._stage, plan, epoch, attempt, [layer_info(layer) for layer in spine])

    def _commit(self, row: StageRow, plan: EpochPlan, attempt: str, outcome: Outcome, started: float) -> None:
        rt, name, epoch = self._rt, self._stage.name, row.head + 1
        with rt.ledger.read() as tx:
            before = epochs.manifest_of(tx, row, row.head) or {}
            inputs_frontier_us = frontier_of_inputs(tx, self._stage, plan.ranges)
            attempts = epochs.attempts_at(tx, row, epoch)
        state_rows = before.get("state_rows", 0) + outcome.keys_added
        segments = outcome.segment_rows
        layer = outcome.layer if self._stage.operator is not None else None
        manifest = {
            "rows_in": plan.rows,
            "rows_out": {port: segment["rows"] for port, segment in segments.items()},
            "keys": outcome.keys,
            "state_rows": state_rows,
            "digests": outcome.digests,
            "seconds": round(time.perf_counter() - started, 4),
            "operator_seconds": round(outcome.operator_ms / 1000, 4),
            "layer_bytes": layer["bytes"] if layer else 0,
            "attempts": attempts,
            **event_time_of(self._stage, plan, outcome, before, inputs_frontier_us),
        }
        crashpoints.reach("commit.before")
        epochs.commit_epoch(
            rt.ledger, Commit(row, epoch, attempt, manifest, layer, segments, dict(plan.ranges))
        )
        crashpoints.reach("commit.after")
        seconds = time.perf_counter() - started
        sample = EpochSample(
            epoch, plan.rows, seconds, outcome.operator_ms / 1000, manifest["layer_bytes"], time.monotonic()
        )
        rt.progress.epoch_done(name, sample, state_rows, manifest["totals"])
        rt.alarm.ring()
