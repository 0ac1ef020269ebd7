"""Replay is not rollback: lost files of committed epochs are made again by the plans that made them.

Invariants: a loss is in the ledger before anything is done about it; a replay commits only in the place of
what is marked lost, in the same branch, and only with equal digests. State that was merged away is rebuilt
from the newest epoch that is still whole below it, and input that was let go is made again by replaying its
producer, in scratch. What cannot be made again stops the flow and says why.
"""

from __future__ import annotations

from contextlib import closing

from holdfast.core import crashpoints
from holdfast.core.errors import FlowError, HoldfastError, StorageError
from holdfast.core.json import Json
from holdfast.flow.planner import Input
from holdfast.ledger import epochs, files
from holdfast.ledger.files import LayerRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import execute, layer_info
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome
from holdfast.state.run import LostFileError
from holdfast.storage.inspection import inspect
from holdfast.storage.shipper import make_durable
from holdfast.storage.sweeper import sweep


def repair(rt: Runtime, cause: LostFileError | None = None) -> int:
    """Find what is lost in all stages and make it again, producers first; how many epochs were repaired."""
    with rt.repairing:
        marked = sum(_mark(rt, name, cause.path if cause else None) for name in rt.stages)
        with closing(_Replays(rt)) as replays:
            repaired = sum(replays.of(name).repair() for name in rt.stages)
    if cause and not marked and not repaired:
        raise cause
    return repaired


def _mark(rt: Runtime, stage: str, named: str | None) -> int:
    """Mark as lost what inspection finds, and the file that a reader could not use."""
    losses = inspect(rt.ledger, rt.root, stage)
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage, rt.generation)
        layers = [
            layer for layer in files.live_layers(tx, row) if any(run["path"] == named for run in layer.runs)
        ]
    ids = sorted({*losses.layers, *(layer.id for layer in layers)})
    if ids or losses.segments:
        reasons = losses.reasons or [f"{named} cannot be read"]
        files.mark_lost(rt.ledger, row, ids, losses.segments, "; ".join(reasons[:20]))
    consumers = rt.plan.consumers(stage)
    sweep(rt.ledger, rt.root, stage, rt.generation, consumers, durable=rt.durable, pinned=rt.pins.held())
    return len(ids) + len(losses.segments)


class _Replays:
    """The replays of one repair, which may need each other's output."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self._stages: dict[str, _StageReplay] = {}

    def of(self, stage: str) -> _StageReplay:
        if stage not in self._stages:
            self._stages[stage] = _StageReplay(self, self.rt.stages[stage])
        return self._stages[stage]

    def segments(self, origin: Input, epoch: int) -> list[Json]:
        """The files of an epoch that its producer had let go of."""
        return self.of(origin.name).outcome(epoch).segments.get(origin.port, [])

    def close(self) -> None:
        """Scratch files stay until the repair is over; then the sweeper may have them."""
        for stage in self._stages.values():
            stage.close()


class _StageReplay:
    """Runs recorded epochs of one stage again."""

    def __init__(self, replays: _Replays, stage: BoundStage) -> None:
        self._replays = replays
        self._rt = replays.rt
        self._stage = stage
        with self._rt.ledger.read() as tx:
            self._row = epochs.own_row(tx, stage.name, self._rt.generation)
            self._layers = files.live_layers(tx, self._row)
            self._lost_segments = set(files.lost_epochs(tx, self._row))
        self._lost_state = set(self._uncovered()) if stage.operator is not None else set()
        self._outcomes: dict[int, Outcome] = {}
        self._attempts: dict[int, str] = {}

    def repair(self) -> int:
        """Replay and commit every epoch that has lost files."""
        lost = sorted(self._lost_state | self._lost_segments)
        for epoch in lost:
            self._commit(epoch, self.outcome(epoch))
        return len(lost)

    def outcome(self, epoch: int) -> Outcome:
        """What the recorded plan of an epoch gives, found equal to what it gave the first time."""
        for step in range(self._start(epoch), epoch + 1):
            if step not in self._outcomes:
                self._outcomes[step] = self._replay(step)
        return self._outcomes[epoch]

    def close(self) -> None:
        """Give up the attempts that were only steps on the way."""
        for attempt in self._attempts.values():
            epochs.close_attempt(self._rt.ledger, self._row, attempt)

    def _uncovered(self) -> list[int]:
        covered = {epoch for layer in self._layers for epoch in range(layer.first, layer.last + 1)}
        return [epoch for epoch in range(self._row.head + 1) if epoch not in covered]

    def _start(self, epoch: int) -> int:
        """The newest epoch at or below `epoch` whose base state is there."""
        if self._stage.operator is None or epoch in self._outcomes:
            return epoch
        return next(e for e in range(epoch, -1, -1) if files.cover(self._layers, e - 1)[1] == e)

    def _replay(self, epoch: int) -> Outcome:
        rt = self._rt
        plan, digests = self._recorded(epoch)
        spine, _ = files.cover(self._layers, epoch - 1)
        attempt = self._attempts[epoch] = epochs.open_attempt(rt.ledger, self._row, "repair", epoch)
        infos = [layer_info(layer) for layer in spine]
        with rt.pins.hold([layer.id for layer in spine]):
            try:
                outcome = execute(rt, self._stage, plan, epoch, attempt, infos, self._replays.segments)
            except HoldfastError as error:
                raise self._hopeless(epoch, error.message) from error
        if outcome.digests != digests:
            raise self._diverged(epoch)
        self._layers.append(LayerRow(-1, epoch, epoch, attempt, 0, 0, outcome.runs))
        return outcome

    def _commit(self, epoch: int, outcome: Outcome) -> None:
        segments = outcome.segment_rows if epoch in self._lost_segments else {}
        layer = outcome.layer if epoch in self._lost_state else None
        if self._rt.durable:
            # The epoch may be below the safe point, which says that its files are on the disk.
            named = [*(layer or {"runs": []})["runs"], *(f for s in segments.values() for f in s["files"])]
            make_durable(self._rt.root, [file["path"] for file in named])
        crashpoints.reach("repair.before_commit")
        files.commit_repair(self._rt.ledger, self._row, self._attempts[epoch], epoch, layer, segments)
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
            f"files of this epoch are lost and cannot be made again: {why}.",
            operation="repair",
            stage=self._stage.name,
            epoch=epoch,
            hint=hint
            or "Bring the lost files or the input back from a backup, or start in a new work directory.",
        )

    def _diverged(self, epoch: int) -> FlowError:
        return FlowError(
            "a replay of the recorded plan gave other rows than the first time, so the stage is not deterministic.",
            operation="repair",
            stage=self._stage.name,
            epoch=epoch,
            hint="Look for random values, the current time, or a filter on a double (use a decimal there).",
        )
