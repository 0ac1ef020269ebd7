"""A standby practises: it runs its stages' own plans on the newest epoch that can still be read, into a scratch
directory, and throws away what comes of it.

That starts Spark's Python workers, one for every core, loads and compiles what an epoch needs, and maps the layers: a fresh worker's first
real epoch takes many times as long as its fifth.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import HoldfastError, StorageError
from holdfast.ledger import epochs, files
from holdfast.ledger.files import LayerRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import execute, layer_info
from holdfast.runtime.pinning import let_go, pin_all
from holdfast.spark.bind import BoundStage
from holdfast.spark.warming import warm_python_workers

SCRATCH = "scratch"

# How far back a rehearsal looks for an epoch whose input is still there.
_EPOCHS_BACK = 20

# A stage, a plan of its, the epoch as which it runs, and the state on which it does.
Material = tuple[BoundStage, EpochPlan, int, Sequence[LayerRow]]


def rehearse(rt: Runtime) -> bool:
    """Run every stage of the group once for practice, as far as it has run at all; whether all went well."""
    with turn(rt.root) as mine:
        done = [_rehearse(rt, *material) for material in _repertoire(rt)] if mine else []
        if done:
            with rt.tagged("all", "rehearsal") as tag:
                warm_python_workers(rt.spark, rt.cores.count, tag)
    return bool(done) and all(done)


@contextmanager
def turn(root: Path) -> Iterator[bool]:
    """Of all standbys of a flow on this machine, one practises at a time; whether it is this one's turn."""
    (root / SCRATCH).mkdir(exist_ok=True)
    fd = os.open(root / SCRATCH / "turn", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clear(rt: Runtime) -> None:
    """Throw away what rehearsals have written."""
    shutil.rmtree(rt.root / SCRATCH / rt.worker, ignore_errors=True)


def _rehearse(
    rt: Runtime, stage: BoundStage, plan: EpochPlan, epoch: int, layers: Sequence[LayerRow]
) -> bool:
    directory = f"{SCRATCH}/{rt.worker}/{stage.name}"
    try:
        # What is no longer kept of the input is passed over: what comes of this means nothing.
        execute(rt, stage, plan, epoch, directory, [layer_info(layer) for layer in layers], lambda *_: [])
    except HoldfastError:
        # Nobody waits for a rehearsal, and a file may be gone by now: the next one may succeed.
        return False
    finally:
        let_go(rt, stage)
        shutil.rmtree(rt.root / directory, ignore_errors=True)
    return True


def _repertoire(rt: Runtime) -> Iterator[Material]:
    for stage in rt.own_stages:
        material = _material(rt, stage)
        if material is not None:
            yield material


def _material(rt: Runtime, stage: BoundStage) -> Material | None:
    """The newest plan that read rows, and the state as it is now; None for a stage that has never run.

    Their files are pinned, so that the primary does not let go of them meanwhile.
    """
    with rt.ledger.unfenced_write() as tx:
        if not epochs.all_registered(tx, [stage.name]):
            return None
        row = epochs.stage_row(tx, stage.name)
        spine, reached = files.cover(files.live_layers(tx, row), row.head)
        if stage.operator is not None and reached != row.head + 1:
            raise StorageError("a layer is missing", operation="rehearse", stage=stage.name, epoch=row.head)
        back = range(row.head + 1, max(row.head - _EPOCHS_BACK, -1), -1)
        bodies = [body for epoch in back if (body := epochs.plan_of(tx, row, epoch)) and "skip" not in body]
        if not bodies:
            return None
        plan = EpochPlan.from_json(next((body for body in bodies if body["rows"]), bodies[0]))
        pin_all(tx, rt, stage, plan, spine)
        return stage, plan, row.head + 1, spine
