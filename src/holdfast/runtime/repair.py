"""Replay is not rollback: lost files of committed epochs are made again by the plans that made them.

Invariants: a loss is in the ledger before anything is done about it; a replay commits only in the place of
what is marked lost, in the same branch, and only with equal digests. What a mirror holds whole is brought back
instead of replayed, and what a stage with `gap()` has lost is skipped. State that was merged away is rebuilt from the newest epoch that is still whole below it, and input
that was let go is made again by replaying its producer, in scratch. What cannot be made again stops the flow and says
why. Files of a stage that another worker runs are marked lost, and waited for.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from holdfast.core import crashpoints, limits
from holdfast.core.errors import HoldfastError, StorageError
from holdfast.core.json import Json
from holdfast.flow.fingerprint import is_other_code
from holdfast.flow.policies import Resume
from holdfast.flow.prefixes import Input
from holdfast.ledger import epochs, files
from holdfast.ledger.files import LayerRow
from holdfast.ledger.skips import give_up_segments
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import execute, layer_info, not_deterministic
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome
from holdfast.state.run import LostFileError
from holdfast.storage.inspection import inspect, is_named
from holdfast.storage.shipper import bring_over
from holdfast.storage.sweeper import sweep
from holdfast.storage.workdir import DATA, attempt_directory


def repair(rt: Runtime, cause: LostFileError | None = None) -> int:
    """Find what is lost in all stages and make it again, producers first; how many epochs were repaired."""
    producer = _stage_of(rt, cause)
    if cause and producer and producer not in rt.own:
        _wait_for_its_worker(rt, producer, cause)
        return 0
    with rt.repairing:
        lost, repaired = _repaired(rt, cause.path if cause else None)
    # Where nothing was lost, another reader may have come upon the same file, and had it repaired.
    if cause and not lost and _is_still_missed(rt, producer, cause):
        raise cause
    return repaired


def _is_still_missed(rt: Runtime, producer: str | None, cause: LostFileError) -> bool:
    """Whether the ledger goes on naming what a reader could not use, or a state has no layers for some epoch."""
    if producer:
        return is_named(rt.ledger, producer, cause.path)
    with rt.ledger.read() as tx:
        rows = [epochs.own_row(tx, stage.name, rt.generation) for stage in rt.own_stages if stage.operator]
        return any(files.cover(files.live_layers(tx, row), row.head)[1] != row.head + 1 for row in rows)


def _repaired(rt: Runtime, suspect: str | None) -> tuple[bool, int]:
    """Whether anything was lost, and how many epochs were made again. A replay may come upon a further loss."""
    lost, further = False, None
    while True:
        marked = sum(_mark(rt, name, suspect) for name in rt.own)
        if further and not marked:
            raise further
        restored = sum(_restore(rt, name) + _given_up(rt, name) for name in rt.own)
        lost = lost or bool(marked or restored)
        try:
            with closing(_Replays(rt)) as replays:
                repaired = sum(replays.of(name).repair() for name in rt.own)
            return lost or repaired > 0, repaired
        except LostFileError as error:
            suspect, further = error.path, error


def needs_repair(rt: Runtime) -> bool:
    """Whether anybody has marked files of this worker's stages as lost."""
    with rt.ledger.read() as tx:
        rows = [epochs.stage_row(tx, name) for name in rt.own]
        return any(files.lost_epochs(tx, row) for row in rows)


def _stage_of(rt: Runtime, cause: LostFileError | None) -> str | None:
    """Whose file a reader missed: paths are data/STAGE/ATTEMPT/NAME."""
    parts = cause.path.split("/") if cause else []
    return parts[1] if len(parts) > 1 and parts[0] == DATA and parts[1] in rt.stages else None


def _wait_for_its_worker(rt: Runtime, producer: str, cause: LostFileError) -> None:
    """A reader that misses a file of another worker's stage marks it lost; that worker makes it again."""
    losses = inspect(rt.ledger, rt.root, producer, cause.path)
    with rt.ledger.read() as tx:
        row = epochs.stage_row(tx, producer)
    if losses:
        files.mark_lost(rt.ledger, row, losses.layers, losses.segments, "; ".join(losses.reasons[:20]))
    deadline = time.monotonic() + limits.REPAIR_MS_MAX / 1000
    while not rt.stopping.wait(limits.POLL_MS / 1000):
        with rt.ledger.read() as tx:
            row = epochs.stage_row(tx, producer)
            if not files.lost_epochs(tx, row):
                return
        if time.monotonic() > deadline:
            raise cause


def _restore(rt: Runtime, stage: str) -> int:
    """Bring back from mirrors what is lost and whole there; how many layers and segments that was."""
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage, rt.generation)
        layers = [(layer.id, layer.runs) for layer in files.lost_layers(tx, row)]
        segments = files.lost_segments(tx, row)
    total = 0
    for tier, mirror in rt.route(stage).mirrors.items():
        found = [
            [i for i, group in kind if bring_over(rt.root, mirror, group)] for kind in (layers, segments)
        ]
        if any(found):
            files.mark_found(rt.ledger, row, found[0], found[1], f"tier {tier}")
        layers = [(i, group) for i, group in layers if i not in found[0]]
        segments = [(i, group) for i, group in segments if i not in found[1]]
        total += len(found[0]) + len(found[1])
    return total


def _given_up(rt: Runtime, stage: str) -> int:
    """A stage that skips what it loses does not make rows again that its consumers had not read."""
    if rt.policy(stage).resume is not Resume.SKIP:
        return 0
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage, rt.generation)
    return give_up_segments(rt.ledger, row)


def _mark(rt: Runtime, stage: str, named: str | None) -> int:
    """Mark as lost what inspection finds, and the file that a reader could not use."""
    losses = inspect(rt.ledger, rt.root, stage, named)
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage, rt.generation)
        lost = files.lost_epochs(tx, row) or files.lost_layers(tx, row)
    if losses:
        files.mark_lost(rt.ledger, row, losses.layers, losses.segments, "; ".join(losses.reasons[:20]))
    elif not lost:
        return 0
    # What nobody needs any more is let go, so that it is not made again. Where nothing is lost that can wait.
    consumers, route = rt.plan.consumers(stage), rt.route(stage)
    sweep(rt.ledger, rt.root, stage, rt.generation, consumers, route, rt.pins.held)
    return len(losses.layers) + len(losses.segments)


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
        self._held = ExitStack()
        self._layers = list(self._held.enter_context(self._rt.pins.hold(self._found)))
        self._lost_state = set(self._uncovered()) if stage.operator is not None else set()
        self._outcomes: dict[int, Outcome] = {}
        self._attempts: dict[int, str] = {}

    def _found(self) -> list[LayerRow]:
        rt, name = self._rt, self._stage.name
        with rt.ledger.read() as tx:
            # The replay of another worker's stage is only a step on the way: nothing of it is committed.
            own = name in rt.own
            self._row = epochs.own_row(tx, name, rt.generation) if own else epochs.stage_row(tx, name)
            self._lost_segments = set(files.lost_epochs(tx, self._row))
            return files.live_layers(tx, self._row)

    def repair(self) -> int:
        """Replay and commit every epoch that has lost files."""
        lost = sorted(self._lost_state | self._lost_segments)
        for epoch in lost:
            self._commit(epoch, self.outcome(epoch))
        self._let_go_of_lost_layers()
        return len(lost)

    def _let_go_of_lost_layers(self) -> None:
        """The state is whole without them: they were made again, or merged layers stand in for them."""
        with self._rt.ledger.read() as tx:
            ids = [layer.id for layer in files.lost_layers(tx, self._row)]
        if ids:
            files.condemn(self._rt.ledger, self._row, ids, [])

    def outcome(self, epoch: int) -> Outcome:
        """What the recorded plan of an epoch gives, found equal to what it gave the first time."""
        for step in range(self._start(epoch), epoch + 1):
            if step not in self._outcomes:
                self._outcomes[step] = self._replay(step)
        return self._outcomes[epoch]

    def close(self) -> None:
        """Give up the attempts that were only steps on the way, and what was held for them."""
        self._held.close()
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
        try:
            directory = attempt_directory(self._stage.name, attempt)
            outcome = execute(rt, self._stage, plan, epoch, directory, infos, self._replays.segments)
        except LostFileError as error:
            if _stage_of(rt, error) in rt.own:
                raise
            raise self._hopeless(epoch, error.message) from error
        except HoldfastError as error:
            raise self._hopeless(epoch, error.message) from error
        if outcome.digests != digests:
            raise not_deterministic(
                "a replay of the recorded plan gave other rows than the first time",
                "repair",
                self._stage.name,
                epoch,
            )
        self._layers.append(LayerRow(-1, epoch, epoch, attempt, 0, 0, outcome.runs))
        return outcome

    def _commit(self, epoch: int, outcome: Outcome) -> None:
        segments = outcome.segment_rows if epoch in self._lost_segments else {}
        layer = outcome.layer if epoch in self._lost_state else None
        # The epoch may be below a safe point, which says that its files have reached the tier.
        named = [*(layer or {"runs": []})["runs"], *(f for s in segments.values() for f in s["files"])]
        self._rt.route(self._stage.name).carry(self._rt.root, [file["path"] for file in named])
        crashpoints.reach("repair.before_commit")
        files.commit_repair(self._rt.ledger, self._row, self._attempts[epoch], epoch, layer, segments)
        self._rt.progress.stage(self._stage.name).repairs += 1

    def _recorded(self, epoch: int) -> tuple[EpochPlan, object]:
        with self._rt.ledger.read() as tx:
            plan = epochs.plan_of(tx, self._row, epoch)
            manifest = epochs.manifest_of(tx, self._row, epoch)
        if plan is None or manifest is None:
            raise self._hopeless(epoch, "its plan is older than the history that the ledger keeps")
        if is_other_code(plan["fingerprint"], self._stage.fingerprint):
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
