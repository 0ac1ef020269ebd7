"""What a successor does with the stages of a worker that is gone, by the policy of each.

Under most policies it adopts what it finds, and there is nothing to do. Where the state's files were the worker's own,
they are gone with it: the state is then given up, made again from retained input, or taken from the standby's mirror.
A stage stays marked as orphaned until this is done, so that a successor's successor does it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from holdfast.core import crashpoints
from holdfast.core.errors import StorageError
from holdfast.core.json import Json
from holdfast.flow.fingerprint import is_other_code
from holdfast.flow.policies import Files, Resume
from holdfast.ledger import epochs, files, groups, skips
from holdfast.ledger import inputs as ledger_inputs
from holdfast.ledger.epochs import StageRow
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.runtime.context import Runtime
from holdfast.runtime.execution import execute, layer_of, not_deterministic
from holdfast.runtime.region import return_region
from holdfast.runtime.substreams import skipped_of
from holdfast.spark.bind import BoundStage
from holdfast.state.layer import LayerInfo
from holdfast.storage.workdir import attempt_directory

# The first epoch of a bucket that was open before its stage had a policy that notes it.
UNNOTED = -1


def recover(rt: Runtime) -> None:
    """Do for every orphaned stage of this worker what its policy asks for."""
    with rt.ledger.read() as tx:
        orphans = groups.orphans(tx)
    captured = [name for name in rt.own if name in orphans and name in rt.region]
    if captured:
        crashpoints.reach("recover.before")
        said = return_region(rt)
        for name in captured:
            groups.recovered(rt.ledger, rt.generation, name, said)
    for stage in rt.own_stages:
        if stage.name not in orphans or stage.name in captured:
            continue
        crashpoints.reach("recover.before")
        groups.recovered(rt.ledger, rt.generation, stage.name, _recovered(rt, stage))


def _recovered(rt: Runtime, stage: BoundStage) -> str:
    with rt.ledger.read() as tx:
        row = epochs.own_row(tx, stage.name, rt.generation)
    policy = stage.spec.policy
    if row.head < 0 and policy.resume is not Resume.SKIP:
        return "it had committed nothing"
    if policy.resume is Resume.REBUILD and _depends_on_what_is_not_noted(rt, stage, row):
        return "it goes on with the files of its predecessor: part of the state is older than the policy"
    if policy.files is Files.WORKER and policy.resume is not Resume.SKIP:
        _lose_state(rt, row)
    match policy.resume:
        case Resume.SKIP:
            return _skip(rt, stage, row)
        case Resume.REBUILD:
            return _rebuild(rt, stage, row)
        case Resume.DELTA:
            return "what the standby's directory lacks is replayed"
        case _:
            return "it goes on with the files of its predecessor"


def _depends_on_what_is_not_noted(rt: Runtime, stage: BoundStage, row: StageRow) -> bool:
    """Whether some of the state is from epochs under another policy, so that nobody knows from where to make it again."""
    with rt.ledger.read() as tx:
        depends = (epochs.manifest_of(tx, row, row.head) or {}).get("depends", [[0, UNNOTED]])
    return stage.operator is not None and any(at == UNNOTED for _, at in depends)


def _lose_state(rt: Runtime, row: StageRow) -> None:
    """The layers were the worker's own: they are gone with it, whatever is left of the files.

    What is marked as lost is read by nobody. The files stay until the state is whole without them: then the layers are
    condemned, and the sweeper unlinks them. So a successor that dies anywhere in between leaves nothing behind.
    """
    with rt.ledger.read() as tx:
        layers = [layer.id for layer in files.live_layers(tx, row)]
    if layers:
        files.mark_lost(rt.ledger, row, layers, [], "they died with the worker that held them")


def _skip(rt: Runtime, stage: BoundStage, row: StageRow) -> str:
    """Give up the state and all unread input."""
    with rt.ledger.read() as tx:
        before = epochs.manifest_of(tx, row, row.head) or {}
        unread = {origin.id: _unread(tx, stage.name, origin.id) for origin in stage.spec.inputs}
    if not any(rows for _, _, rows in unread.values()) and not before.get("state_rows", 0):
        return "nothing was unread, and the state was empty"
    return skip_over(rt, stage, row, unread)


def skip_over(
    rt: Runtime, stage: BoundStage, row: StageRow, unread: Mapping[str, tuple[int, int, int]]
) -> str:
    """Commit an epoch that gives up the state and some input, and says how much that was."""
    with rt.ledger.read() as tx:
        before = epochs.manifest_of(tx, row, row.head) or {}
        ranges = {name: (start, stop) for name, (start, stop, _) in unread.items()}
        labels = skipped_of(rt, tx, stage, row, ranges)
    rows = sum(part[2] for part in unread.values())
    state_rows = int(before.get("state_rows", 0))
    carried: Json = {
        key: before[key] for key in ("watermark_us", "newest_us", "frontier", "totals") if key in before
    }
    manifest: Json = {
        "rows_in": 0,
        "rows_out": {},
        "rows_skipped": rows,
        "skipped": {name: [start, stop] for name, (start, stop, _) in unread.items()},
        "state_rows_lost": state_rows,
        "keys": 0,
        "state_rows": 0,
        "digests": {},
        "seconds": 0.0,
        "operator_seconds": 0.0,
        "layer_bytes": 0,
        "attempts": 0,
        "watermark_us": None,
        "newest_us": {},
        "frontier": {"any": None, "end": None},
        "holds": [],
        "counts": {},
        "totals": {},
        **carried,
        **labels,
    }
    skips.commit_skip(rt.ledger, row, stage.operator is not None, ranges, manifest)
    said = f"{rows} unread rows were skipped, and {state_rows} rows of state are lost"
    rt.progress.resume(stage.name, row.head + 1, 0, manifest["totals"])
    return said


def _unread(tx: sa.Connection, stage: str, name: str) -> tuple[int, int, int]:
    """From where to where a stage has not read an input, and the rows in there."""
    start = ledger_inputs.processed(tx, f"stage:{stage}", name)
    stop, rows = ledger_inputs.rest_of(tx, name, start)
    return start, stop, rows


def _rebuild(rt: Runtime, stage: BoundStage, row: StageRow) -> str:
    """Replay the retained plans onto an empty state, publish nothing, and commit the spine that comes of it.

    Epochs that find all the state that they found the first time must give the same again.
    """
    if stage.operator is None:
        return "it keeps no state"
    with rt.ledger.read() as tx:
        depends = (epochs.manifest_of(tx, row, row.head) or {}).get("depends", [])
    first = min((epoch for _, epoch in depends), default=row.head + 1)
    spine: list[LayerInfo] = []
    made: list[tuple[int, str, Json]] = []
    for epoch in range(first, row.head + 1):
        plan = _retained(rt, row, epoch)
        attempt = epochs.open_attempt(rt.ledger, row, "rebuild", epoch)
        outcome = execute(rt, stage, plan, epoch, attempt_directory(stage.name, attempt), spine)
        digests = _comparable(rt, stage, row, plan, epoch, first)
        if digests is not None and outcome.digests != digests:
            raise not_deterministic(
                "a replay of the retained input gave other rows than the first time",
                "rebuild",
                stage.name,
                epoch,
            )
        spine.append(layer_of(epoch, epoch, outcome.runs))
        made.append((epoch, attempt, outcome.layer))
    crashpoints.reach("recover.before_commit")
    skips.commit_rebuild(rt.ledger, row, first, made)
    return f"the state was made again from {len(made)} epochs of input, {first} to {row.head}"


def _retained(rt: Runtime, row: StageRow, epoch: int) -> EpochPlan:
    with rt.ledger.read() as tx:
        body = epochs.plan_of(tx, row, epoch)
    if body is None:
        raise StorageError(
            "the plan of an epoch that the state depends on is no longer kept",
            operation="rebuild",
            stage=row.stage,
            epoch=epoch,
            hint="Start the flow in a new work directory, or choose another recovery policy for the stage.",
        )
    return EpochPlan.from_json(body)


def _comparable(
    rt: Runtime, stage: BoundStage, row: StageRow, plan: EpochPlan, epoch: int, first: int
) -> Json | None:
    """What an epoch gave the first time, if its replay in a rebuild from `first` must give it again.

    Other code may rightly give other rows, and so may input of a producer that skips what it loses.
    """
    gives_up = any(
        origin.kind == "channel" and rt.policy(origin.name).resume is Resume.SKIP
        for origin in stage.spec.inputs
    )
    if gives_up or is_other_code(plan.fingerprint, stage.fingerprint):
        return None
    with rt.ledger.read() as tx:
        manifest = epochs.manifest_of(tx, row, epoch)
        before = epochs.manifest_of(tx, row, epoch - 1)
    if manifest is None or not begins_whole(before, epoch, first):
        return None
    digests: Json = manifest["digests"]
    return digests


def begins_whole(before: Json | None, epoch: int, first: int) -> bool:
    """Whether a rebuild from `first` comes to an epoch with all of the state that the epoch found, by the manifest before it.

    A bucket that began earlier lacks rows in the replay, so the epochs that it was open in come out differently. It has
    closed by the head, or the rebuild would begin earlier: what is left in the end is whole all the same.
    """
    if epoch == 0:
        return True
    depends = (before or {}).get("depends")
    return depends is not None and all(at >= first for _, at in depends)


def open_buckets(
    before: Sequence[Sequence[int]], epoch: int, buckets: Sequence[int], floor: int | None
) -> list[list[int]]:
    """By open bucket, the first epoch that put rows into it: a state that is lost is made again from there."""
    first = {int(bucket): int(at) for bucket, at in before}
    for bucket in buckets:
        first.setdefault(bucket, epoch)
    return [[bucket, at] for bucket, at in sorted(first.items()) if floor is None or bucket >= floor]
