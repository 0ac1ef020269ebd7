"""Replay is not rollback: lost files of committed epochs are made again by the plans that made them.

Invariants: a loss is in the ledger before anything is done about it; a replay commits only in the place of
what is marked lost, in the same branch, and only with equal digests; state that was merged away is rebuilt
from the newest epoch that is still whole below it. What cannot be made again stops the flow and says why.
"""

from __future__ import annotations

from holdfast.core import crashpoints
from holdfast.core.errors import FlowError, HoldfastError, StorageError
from holdfast.ledger import epochs, files
from holdfast.ledger.files import LayerRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import execute, layer_info
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome
from holdfast.state.run import LostFileError
from holdfast.storage.inspection import inspect
from holdfast.storage.sweeper import sweep


def repair(rt: Runtime, cause: LostFileError | None = None) -> int:
    """Find what is lost in all stages and make it again, producers first; how many epochs were replayed."""
    with rt.repairing:
        marked = sum(_mark(rt, name, cause.path if cause else None) for name in rt.stages)
        replayed = sum(_StageRepair(rt, stage).run() for stage in rt.stages.values())
    if cause and not marked and not replayed:
        raise cause
    return replayed


def _mark(rt: Runtime, stage: str, named: str | None) -> int:
    """Mark as lost what inspection finds, and the file that a reader could not use."""
    losses = inspect(rt.ledger, rt.root, stage)
    with rt.ledger.read() as tx:
        row = epochs.stage_row(tx, stage)
        layers = [
            layer for layer in files.live_layers(tx, row) if any(run["path"] == named for run in layer.runs)
        ]
    ids = sorted({*losses.layers, *(layer.id for layer in layers)})
    if ids or losses.segments:
        reasons = losses.reasons or [f"{named} cannot be read"]
        files.mark_lost(rt.ledger, row, ids, losses.segments, "; ".join(reasons[:20]))
    consumers = rt.plan.consumers(stage)
    sweep(rt.ledger, rt.root, stage, consumers, durable=rt.durable, pinned=rt.pins.held())
    return len(ids) + len(losses.segments)


class _StageRepair:
    """Replays the epochs of one stage whose files are lost."""

    def __init__(self, rt: Runtime, stage: BoundStage) -> None:
        self._rt = rt
        self._stage = stage
        with rt.ledger.read() as tx:
            self._row = epochs.stage_row(tx, stage.name)
            self._layers = files.live_layers(tx, self._row)
            self._segments = set(files.lost_epochs(tx, self._row))
        self._open: list[str] = []

    def run(self) -> int:
        lost_state = set(self._uncovered()) if self._stage.operator is not None else set()
        todo = sorted(lost_state | self._segments)
        replayed, position = 0, -1
        try:
            for epoch in todo:
                for step in range(max(position, self._start(epoch)), epoch + 1):
                    self._replay(step, step in lost_state)
                    replayed += 1
                position = epoch + 1
        finally:
            for attempt in self._open:
                epochs.close_attempt(self._rt.ledger, self._row, attempt)
        return replayed

    def _uncovered(self) -> list[int]:
        covered = {epoch for layer in self._layers for epoch in range(layer.first, layer.last + 1)}
        return [epoch for epoch in range(self._row.head + 1) if epoch not in covered]

    def _start(self, epoch: int) -> int:
        """The newest epoch at or below `epoch` whose base state is there."""
        if self._stage.operator is None:
            return epoch
        return next(e for e in range(epoch, -1, -1) if files.cover(self._layers, e - 1)[1] == e)

    def _replay(self, epoch: int, layer_is_lost: bool) -> None:
        rt, row = self._rt, self._row
        plan, digests = self._recorded(epoch)
        spine, _ = files.cover(self._layers, epoch - 1)
        attempt = epochs.open_attempt(rt.ledger, row, "repair", epoch)
        self._open.append(attempt)
        with rt.pins.hold([layer.id for layer in spine]):
            try:
                infos = [layer_info(layer) for layer in spine]
                outcome = execute(rt, self._stage, plan, epoch, attempt, infos)
            except HoldfastError as error:
                raise self._hopeless(epoch, str(error)) from error
        if outcome.digests != digests:
            raise self._diverged(epoch)
        self._commit(epoch, attempt, outcome, layer_is_lost)

    def _commit(self, epoch: int, attempt: str, outcome: Outcome, layer_is_lost: bool) -> None:
        segments = outcome.segment_rows if epoch in self._segments else {}
        layer = outcome.layer if layer_is_lost else None
        self._layers.append(LayerRow(-1, epoch, epoch, attempt, 0, 0, outcome.runs))
        if layer is None and not segments:
            return  # only a step on the way; its files stay until the repair is over
        crashpoints.reach("repair.before_commit")
        files.commit_repair(self._rt.ledger, self._row, attempt, epoch, layer, segments)
        self._rt.progress.stage(self._stage.name).repairs += 1

    def _recorded(self, epoch: int) -> tuple[EpochPlan, object]:
        with self._rt.ledger.read() as tx:
            plan = epochs.plan_of(tx, self._row, epoch)
            manifest = epochs.manifest_of(tx, self._row, epoch)
        if plan is None or manifest is None:
            raise self._hopeless(epoch, "its plan is older than the history that the ledger keeps")
        if plan["fingerprint"] != self._stage.fingerprint:
            raise self._hopeless(
                epoch,
                "it was made by other code",
                "Run the flow once with the code of that epoch, then change it.",
            )
        return EpochPlan.from_json(plan), manifest["digests"]

    def _hopeless(self, epoch: int, why: str, hint: str | None = None) -> StorageError:
        return StorageError(
            f"files of this epoch are lost and cannot be made again: {why}",
            operation="repair",
            stage=self._stage.name,
            epoch=epoch,
            hint=hint
            or "Bring the lost files or the input back from a backup, or start in a new work directory.",
        )

    def _diverged(self, epoch: int) -> FlowError:
        return FlowError(
            "a replay of the recorded plan gave other rows than the first time, so the stage is not deterministic",
            operation="repair",
            stage=self._stage.name,
            epoch=epoch,
            hint="Look for random values, the current time, or a filter on a double (use a decimal there).",
        )
