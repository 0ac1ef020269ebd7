"""The life of a stage: plan, run one Spark job, commit; again and again.

Invariants: one open plan at a time, finished before another is made; an attempt that fails leaves nothing
visible, and is tried again a bounded number of times, unless it failed in the user's code; a lost file is repaired before the attempt is tried
again, and costs no try. Members of a group that compute the same epoch race: the first to record a plan or to commit
wins, and the others compare what they have with what won.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from holdfast.core import crashpoints, limits
from holdfast.core.errors import CodeError, FencedError, HoldfastError
from holdfast.core.json import Json
from holdfast.flow.policies import Persist, Resume, Standby
from holdfast.ledger import epochs, files, replicas
from holdfast.ledger.epochs import Commit, StageRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.event_time import event_time_of
from holdfast.runtime.execution import execute, layer_info, not_deterministic
from holdfast.runtime.loops import Loop
from holdfast.runtime.pacing import Pace
from holdfast.runtime.passing import pass_over
from holdfast.runtime.pinning import base_state
from holdfast.runtime.planning import PassOver, frontier_of_inputs, is_timed, next_step
from holdfast.runtime.progress import EpochSample
from holdfast.runtime.recovery import UNNOTED, open_buckets, skip_over
from holdfast.runtime.repair import repair
from holdfast.runtime.substreams import substreams_of
from holdfast.runtime.tables import TableVersions
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome, SparkJobError
from holdfast.state.run import LostFileError
from holdfast.storage.workdir import attempt_directory


def loop_of(rt: Runtime, stage: BoundStage) -> Loop:
    """What a worker does for one stage, again and again."""
    by_news, is_due = not is_timed(rt, stage), partial(rt.ticks.has_come, stage.name)
    return Loop(f"stage {stage.name}", StageLoop(rt, stage).step, by_news=by_news, is_due=is_due)


class StageLoop:
    """Runs the epochs of one stage."""

    def __init__(self, rt: Runtime, stage: BoundStage) -> None:
        self._rt = rt
        self._stage = stage
        self._policy = stage.spec.policy
        self._lockstep = self._policy.lockstep
        self._stumbles = 0  # in a row
        self._tables = TableVersions(rt, stage)
        self._pace = Pace(rt)

    def step(self) -> bool:
        """Finish one epoch if there is one to do; whether there was."""
        self._rt.computing.add(self._stage.name)
        try:
            return self._step()
        finally:
            self._rt.computing.discard(self._stage.name)

    def _step(self) -> bool:
        self._pace.keep()
        started, generation = time.perf_counter(), self._rt.generation
        if self._rt.closing.is_set():
            return False
        try:
            row, found, is_open = self._next()
            if isinstance(found, PassOver):
                pass_over(self._rt, self._stage, row, found)
            if not isinstance(found, EpochPlan):
                return found is not None
            row, plan, attempt = self._begun(row, found, is_open)
        except FencedError:
            if self._is_beaten(generation):
                return True
            raise
        try:
            outcome, attempt = self._run(row, plan, attempt)
            self._commit(row, plan, attempt, outcome, started)
        except HoldfastError as error:
            if self._is_excused(row, error):
                return True
            raise error.at(stage=self._stage.name, epoch=row.head + 1) from error.__cause__
        return True

    def _next(self) -> tuple[StageRow, EpochPlan | PassOver | None, bool]:
        """Where the stage stands, what it does next, and whether that is an epoch which was planned before."""
        rt, stage = self._rt, self._stage
        rt.cores.look()
        self._skip_along()
        with rt.ledger.read() as tx:
            row = epochs.own_row(tx, stage.name, rt.generation)
            body = epochs.open_plan(tx, row)
            if not body and self._lockstep and not replicas.all_have(tx, row, rt.group):
                return row, None, False
            found = EpochPlan.from_json(body) if body else next_step(rt, tx, stage, row)
        return row, found, body is not None

    def _begun(self, row: StageRow, plan: EpochPlan, is_open: bool) -> tuple[StageRow, EpochPlan, str]:
        """A plan in the ledger, and the first attempt at it."""
        rt, stage = self._rt, self._stage
        crashpoints.reach("plan.before")
        if is_open and plan.fingerprint == stage.fingerprint and self._tables.are_kept(plan):
            attempt = epochs.open_attempt(rt.ledger, row, "epoch", row.head + 1)
        else:
            plan = self._tables.planned(row, plan.with_fingerprint(stage.fingerprint))
            row, attempt = epochs.record_plan(rt.ledger, row, plan.to_json())
        crashpoints.reach("plan.after")
        return row, plan, attempt

    def _skip_along(self) -> None:
        """Where the script skips, skip what it skipped."""
        rt, stage = self._rt, self._stage
        if rt.script.plans is None:
            return
        with rt.ledger.read() as tx:
            row = epochs.own_row(tx, stage.name, rt.generation)
            body = rt.script.plan(tx, row)
        if body and body.get("skip"):
            skip_over(
                rt, stage, row, {name: (start, stop, 0) for name, (start, stop) in body["ranges"].items()}
            )

    def _run(self, row: StageRow, plan: EpochPlan, attempt: str) -> tuple[Outcome, str]:
        """Try until an attempt succeeds; what fails for good is raised as it is."""
        tries = 0
        while True:
            try:
                return self._try(row, plan, attempt), attempt
            except (LostFileError, SparkJobError) as error:
                if not self._rt.leads or self._is_overtaken(row):
                    raise
                epochs.close_attempt(self._rt.ledger, row, attempt)
                if isinstance(error, LostFileError):
                    repair(self._rt, error)
                else:
                    tries += 1
                    if tries >= limits.ATTEMPTS_PER_PLAN_MAX or self._rt.stopping.is_set():
                        raise
                attempt = epochs.open_attempt(self._rt.ledger, row, "epoch", row.head + 1)

    def _try(self, row: StageRow, plan: EpochPlan, attempt: str) -> Outcome:
        stage, directory = self._stage, attempt_directory(self._stage.name, attempt)
        with base_state(self._rt, stage, row, plan) as spine:
            layers = [layer_info(layer) for layer in spine]
            return execute(self._rt, stage, plan, row.head + 1, directory, layers)

    def _commit(self, row: StageRow, plan: EpochPlan, attempt: str, outcome: Outcome, started: float) -> None:
        rt, name, epoch = self._rt, self._stage.name, row.head + 1
        self._stumbles = 0
        with rt.ledger.read() as tx:
            before = epochs.manifest_of(tx, row, row.head) or {}
            read = {name: stop for name, (_, stop) in plan.ranges.items()}
            inputs_frontier_us = frontier_of_inputs(rt, tx, self._stage, read)
            attempts = epochs.attempts_at(tx, row, epoch)
            labels = substreams_of(rt, tx, self._stage, row, plan, outcome)
        state_rows = before.get("state_rows", 0) + outcome.keys_added
        given_up = rt.script.given_up(name, epoch)
        segments = {port: rows for port, rows in outcome.segment_rows.items() if port not in given_up}
        layer = outcome.layer if self._stage.operator is not None else None
        if self._policy.persist is Persist.BEFORE:
            named = [*outcome.runs, *(file for segment in segments.values() for file in segment["files"])]
            rt.route(name).carry(rt.root, [file["path"] for file in named])
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
            **self._depends(before, row, plan, outcome),
            **rt.ticks.noted(plan.ranges, plan.now_ms, before),
            **labels,
        }
        crashpoints.reach("commit.before")
        commit = Commit(row, epoch, attempt, manifest, layer, segments, dict(plan.ranges))
        won = self._raced(commit)
        crashpoints.reach("commit.after")
        if self._lockstep:
            replicas.computed(rt.ledger, rt.generation, name, rt.worker, epoch)
        rt.alarm.ring()
        seconds = time.perf_counter() - started
        if not won:
            if not self._lockstep:
                self._pace.lost(row, seconds)
            return
        sample = EpochSample(
            epoch, plan.rows, seconds, outcome.operator_ms / 1000, manifest["layer_bytes"], time.monotonic()
        )
        rt.progress.epoch_done(name, sample, state_rows, manifest["totals"])

    def _depends(self, before: Json, row: StageRow, plan: EpochPlan, outcome: Outcome) -> Json:
        """What a state that can be lost would have to be made from again."""
        operator = self._stage.operator
        if self._policy.resume is not Resume.REBUILD or operator is None:
            return {}
        buckets = [bucket for run in outcome.runs for bucket, _ in run["buckets"]]
        floor = operator.timing.floor(plan.watermark_us) if operator.timing else None
        begun = before["depends"] if "depends" in before else self._begun_unnoted(row)
        return {"depends": open_buckets(begun, row.head + 1, buckets, floor)}

    def _begun_unnoted(self, row: StageRow) -> list[list[int]]:
        """Buckets that were open before the stage had this policy: since when, nobody has noted."""
        with self._rt.ledger.read() as tx:
            layers = files.live_layers(tx, row)
        return [
            [bucket, UNNOTED] for bucket in sorted({bucket for layer in layers for bucket in layer.buckets})
        ]

    def _raced(self, commit: Commit) -> bool:
        """Commit; whether this member was the first. A member that stays when another goes tries once more."""
        rt, row = self._rt, commit.stage
        try:
            epochs.commit_epoch(rt.ledger, commit)
            return True
        except FencedError:
            if not self._is_beaten(row.generation):
                raise
        with rt.ledger.read() as tx:
            now = epochs.own_row(tx, row.stage, rt.generation)
            theirs = epochs.manifest_of(tx, now, commit.epoch)
        if theirs is None:
            epochs.commit_epoch(rt.ledger, replace(commit, stage=replace(row, generation=now.generation)))
            return True
        epochs.close_attempt(rt.ledger, now, commit.attempt)
        if theirs["digests"] != commit.manifest["digests"]:
            raise not_deterministic(
                "two members of the group computed different rows from one plan",
                "commit",
                self._stage.name,
                commit.epoch,
            )
        return False

    def _is_beaten(self, generation: int) -> bool:
        """Whether a refusal only means that another member was faster, or that one was expelled."""
        rt = self._rt
        return rt.is_member() and (rt.generation != generation or self._policy.standby is Standby.HOT)

    def _is_excused(self, row: StageRow, error: HoldfastError) -> bool:
        """Whether what went wrong does not matter, because others have gone on, or may go right the next time.

        A follower reads what its leader may let go of at any time; only a leader finds out what is really lost.
        """
        borne = FencedError | LostFileError | SparkJobError | CodeError
        if not isinstance(error, borne) or not self._is_beaten(row.generation):
            return False
        self._stumbles += 1
        follows = not self._rt.leads and self._stumbles < limits.STUMBLES_MAX
        return self._is_overtaken(row) or (follows and not isinstance(error, FencedError))

    def _is_overtaken(self, row: StageRow) -> bool:
        """Whether the others have gone on meanwhile, so that nothing that went wrong here matters."""
        with self._rt.ledger.read() as tx:
            now = epochs.stage_row(tx, self._stage.name)
        return (now.head, now.generation) != (row.head, row.generation)
