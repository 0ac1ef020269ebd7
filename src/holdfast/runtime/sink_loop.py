"""Publishes committed epochs to one sink, in order, once.

Invariants: only segments of committed manifests leave; the target's own record decides what has left, and
the ledger's cursor follows it; a target that is ahead of the ledger, or behind it, stops the flow.

Epochs are published under the generation that the target was opened by. When the group's generation is raised under
this process, because another member was expelled or a region went back to a snapshot, the next epoch is refused before
it is offered, and the target is opened again: the fence rises there too, and what was staged under it is settled.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from holdfast.core.errors import FencedError, HoldfastError, SinkError
from holdfast.flow.flow_plan import SinkSpec
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.branches import is_shared
from holdfast.ledger.epochs import StageRow, stage_row
from holdfast.ledger.sink_starts import start_of
from holdfast.ledger.snapshots import released
from holdfast.ledger.substreams import report_of_sink
from holdfast.runtime.context import Runtime
from holdfast.runtime.healing import until_healed
from holdfast.runtime.repair import repair
from holdfast.sinks.contract import RESET, Sink, SinkRecord
from holdfast.state.run import LostFileError
from holdfast.storage.checksums import fault_at_first


class SinkLoop:
    """Feeds one sink from one stage."""

    def __init__(self, rt: Runtime, spec: SinkSpec, sink: Sink) -> None:
        self._rt = rt
        self._spec = spec
        self._sink = sink
        self._consumer = f"sink:{spec.name}"
        self._input = spec.input.id
        self._opened = 0, 0  # by which generation, for which branch

    def open(self) -> None:
        """Fence older generations in the target, and compare its record with the ledger."""
        with self._rt.ledger.read() as tx:
            row = stage_row(tx, self._spec.stage)
            position = ledger_inputs.processed(tx, self._consumer, self._input)
            start = start_of(tx, self._spec.name)
        generation = self._rt.generation
        record = self._open_target(row.branch, generation, position)
        last = record.epoch if record else None
        if last is not None and last > row.head:
            raise self._stop(f"holds epoch {last}, but the ledger knows only {row.head}", "ahead of", last)
        if (last is not None and last < position - 1) or (last is None and position > start):
            raise self._stop(
                f"holds epochs up to {last}, but {position - 1} was published", "behind", position - 1
            )
        if record and record.branch != row.branch:
            self._follow(generation, row, record, position)
        self._opened = generation, row.branch

    def _open_target(self, branch: int, generation: int, position: int) -> SinkRecord | None:
        """What the target holds last. One that was opened by a newer generation than ours, which is the ledger's newest, was
        so by a flow of this name in another work directory, or in this one before it was removed.
        """
        try:
            return until_healed(
                lambda: self._sink.open(self._rt.plan.name, branch, generation, position), self._rt.stopping
            )
        except FencedError as error:
            self._rt.ledger.refuse_deposed(generation)
            raise SinkError(
                f"the target of sink {self._spec.name!r} has the record of an earlier life of this flow: {error.message}",
                operation="open sink",
                stage=self._spec.stage,
                hint=f"Bring the work directory of that life back, or name another target. To start over, {self._reset}"
                " removes the target's record and what was published.",
            ) from error
        except SinkError as error:
            error.hint = (error.hint or "").replace(RESET, self._reset) or None
            raise

    @property
    def _reset(self) -> str:
        return RESET.replace("DIR", str(self._rt.root))

    def _follow(self, generation: int, row: StageRow, record: SinkRecord, position: int) -> None:
        """A target of an older branch must hold only what the branch shares; what it holds is not offered again."""
        with self._rt.ledger.read() as tx:
            shared = is_shared(tx, row, record.branch, record.epoch)
        if not shared:
            raise self._stop(f"holds epoch {record.epoch}, which was undone", "ahead of", record.epoch)
        if record.epoch >= position:
            move = generation, self._consumer, self._input, position, record.epoch + 1
            ledger_inputs.move_cursor(self._rt.ledger, *move)

    def step(self) -> bool:
        """Publish the epochs that may leave and are not yet published; whether there were any."""
        with self._rt.ledger.read() as tx:
            row = stage_row(tx, self._spec.stage)
            position = ledger_inputs.processed(tx, self._consumer, self._input)
            last = released(tx, row)
            segments = ledger_inputs.segments(tx, self._spec.stage, self._spec.port, position, last + 1)
        if position <= last and self._opened != (self._rt.generation, row.branch):
            self.open()
            return True
        for epoch in range(position, last + 1):
            if self._rt.stopping.is_set():
                break
            files = [file for segment in segments if segment.epoch == epoch for file in segment.files]
            try:
                self._publish(epoch, files)
            except LostFileError as error:
                repair(self._rt, error)
                return True
            except HoldfastError as error:
                raise error.at(stage=self._spec.stage, epoch=epoch) from error.__cause__
        return position <= last

    def close(self) -> None:
        """Let go of the target."""
        self._sink.close()

    def _publish(self, epoch: int, files: list[dict[str, object]]) -> None:
        rt, (generation, branch) = self._rt, self._opened
        for file in files:
            wrong = fault_at_first(rt.root, file)
            if wrong:
                raise LostFileError(str(file["path"]), wrong)
        record = SinkRecord(rt.plan.name, branch, epoch, 0, generation)
        until_healed(
            lambda: self._offer(record, [rt.root / str(file["path"]) for file in files]), rt.stopping
        )
        move = self._consumer, self._input, epoch, epoch + 1
        ledger_inputs.move_cursor(rt.ledger, generation, *move, lambda tx: self._report(tx, branch, epoch))
        rt.progress.sink_done(self._spec.name, epoch)

    def _offer(self, record: SinkRecord, segments: list[Path]) -> None:
        # A target of ours fences by itself; a function of the user's is spared a call by a process that was replaced.
        # And whoever stays while the generation is raised opens the target again before it offers more.
        self._rt.ledger.refuse_deposed(record.generation)
        self._sink.publish(record, segments)

    def _report(self, tx: sa.Connection, branch: int, epoch: int) -> None:
        """An ended substream is through all sinks too."""
        scope = self._rt.labels.scope_of(self._consumer)
        if scope is not None:
            report_of_sink(tx, scope.name, self._consumer, self._spec.stage, branch, epoch)

    def _stop(self, what: str, side: str, epoch: int) -> SinkError:
        return SinkError(
            f"sink {self._spec.name!r} {what}: the target is {side} the ledger",
            operation="open sink",
            stage=self._spec.stage,
            epoch=epoch,
            hint="Was the work directory, or the target, replaced or set back? Bring the matching one back, or"
            f" start over with {self._reset}. After `holdfast snapshot restore --new-targets`, name"
            " another target for this sink.",
        )
