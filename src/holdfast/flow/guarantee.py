"""What a flow promises, its sources, stages and sinks must be able to hold: checked before anything runs.

Nothing is ever weakened in silence. What cannot hold is an error that names the part, says why, and which
alternatives would hold; these are tried against the same rules before they are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import cycles, nodes, policies
from holdfast.flow.endpoints import ForeachSink
from holdfast.flow.nodes import Stateful
from holdfast.flow.policies import TIER_THAT_SURVIVES, Policy, Resume
from holdfast.flow.streams import StreamSource
from holdfast.flow.windows import Session

if TYPE_CHECKING:
    from holdfast.flow.flow_plan import FlowPlan, SinkSpec, StageSpec

_DEFAULT = policies.no_sync()

# What a successor needs that is lost with the machine.
_ON_THIS_MACHINE = {
    Resume.DELTA: "the standby and its copy of the state are",
    Resume.REBUILD: "the input from which the state would be made again is retained",
}


@dataclass(frozen=True)
class _Objection:
    """Why a policy will not do for a stage, and what else than another policy would help."""

    why: str
    way_out: str


def check(planned: FlowPlan) -> None:
    """Raise for the first part of a flow that cannot hold what the flow promises."""
    _check_sources(planned)
    for stage in planned.stages:
        _check_stage(planned, stage)
    _check_region(planned)
    for sink in planned.sinks:
        _check_sink(planned, sink)
    _check_replica(planned)


def _check_sources(planned: FlowPlan) -> None:
    for name, description in planned.sources.items():
        if planned.guarantee != "at_most_once" and not description.rereadable:
            raise PlanError(
                f"guarantee={planned.guarantee!r} cannot hold for source {name!r}: it cannot be read again, and an epoch "
                "that a failure cuts off must be",
                operation="plan",
                hint="Write its rows to files first and read these with hf.files, which keeps them; or say "
                'hf.Flow(..., guarantee="at_most_once").',
            )
        if isinstance(description, StreamSource):
            _check_stream(planned, name, description)


def _check_stream(planned: FlowPlan, name: str, description: StreamSource) -> None:
    """A stream is exact from its log on: what is lost before, or with the log, nobody can ask for again."""
    if planned.guarantee != "at_most_once" and not description.resumes:
        raise PlanError(
            f"guarantee={planned.guarantee!r} cannot hold for source {name!r}: with resumes=False, rows that were received "
            "and not yet logged are gone when the process ends",
            operation="plan",
            hint="Read from a connector that can go on where its checkpoint ends, such as files or Kafka; or say "
            'hf.Flow(..., guarantee="at_most_once").',
        )
    if planned.survives == "machine":
        raise PlanError(
            f'survives="machine" cannot hold for source {name!r}: the log of hf.read_stream is on this machine only',
            operation="plan",
            hint='Say survives="power", or read it with hf.kafka, hf.files or hf.delta_source, which need no log.',
        )


def _check_stage(planned: FlowPlan, stage: StageSpec) -> None:
    objection = _objection(planned, stage, stage.policy)
    if objection is None:
        return
    others = [name for name, policy in _candidates(planned) if _objection(planned, stage, policy) is None]
    raise PlanError(
        f"stage {stage.name!r} cannot recover by {stage.policy.name}: {objection.why}",
        operation="plan",
        stage=stage.name,
        hint=f"These would do for it: {', '.join(others)}. Or {objection.way_out}.",
    )


def objection(planned: FlowPlan, stage: StageSpec, policy: Policy) -> str | None:
    """Why a stage cannot recover by a policy; None if it can."""
    found = _objection(planned, stage, policy)
    return found.why if found else None


def _candidates(planned: FlowPlan) -> Iterator[tuple[str, Policy]]:
    """The policies, as one would write them for this flow."""
    default = policies.default_policy(planned.survives)
    yield "hf.no_sync()" if default == _DEFAULT else f"hf.no_sync({default.tiers})", default
    for make in (
        policies.strong_production,
        policies.passive_standby,
        policies.active_standby,
        policies.snapshot,
        policies.upstream_backup,
        policies.gap,
    ):
        yield f"hf.{make.__name__}()", make().reaching(planned.survives)


def _objection(planned: FlowPlan, stage: StageSpec, policy: Policy) -> _Objection | None:
    if policy.repeats and planned.guarantee != "at_least_once":
        return _Objection(
            "its stages do not wait for each other's markers, so rows that were counted before a failure may count "
            f"again, and guarantee={planned.guarantee!r} counts none twice",
            'say mode="aligned" or mode="unaligned", or hf.Flow(..., guarantee="at_least_once")',
        )
    if policy.resume is Resume.SKIP and planned.guarantee != "at_most_once":
        return _Objection(
            f"it skips rows after a failure, and guarantee={planned.guarantee!r} leaves no row out",
            'say hf.Flow(..., guarantee="at_most_once")',
        )
    fed_back = cycles.objection(planned, stage, policy)
    if fed_back is not None:
        return _Objection(*fed_back)
    if policy.resume is Resume.SKIP and _remembers_labels(stage.operator):
        return _Objection(
            "it would forget which substreams it has closed, and send rows on under them",
            'label by event time: .substream(time="ts", every="1 hour")',
        )
    if policy.resume in _ON_THIS_MACHINE and planned.survives == "machine":
        return _Objection(
            f"{_ON_THIS_MACHINE[policy.resume]} on this machine",
            'say survives="power"',
        )
    if policy.resume is Resume.REBUILD:
        return _objection_to_rebuilding(planned, stage)
    needed = TIER_THAT_SURVIVES[planned.survives]
    # Only files that a successor adopts must have survived; the other policies go by a standby's or by the input.
    if policy.resume is Resume.ADOPT and needed not in policy.tiers:
        return _Objection(
            f"it carries files to {' and '.join(policy.tiers)}, and survives={planned.survives!r} needs them on the tier "
            f"{needed!r}",
            f"say survives={_survived_by(policy)!r}",
        )
    return None


def _check_region(planned: FlowPlan) -> None:
    """One region a flow: its stages are captured together, so they must agree on how."""
    first = next((stage for stage in planned.stages if stage.policy.snapshots), None)
    for stage in planned.stages:
        if first and stage.policy.snapshots and stage.policy.snapshots != first.policy.snapshots:
            raise PlanError(
                f"stages {first.name!r} and {stage.name!r} are to be captured as one, but in different ways: "
                f"{first.policy.snapshots}; and {stage.policy.snapshots}",
                operation="plan",
                stage=stage.name,
                hint="Make one policy = hf.snapshot(...) and give it to all of them, or to the flow with recover=.",
            )
    for stage in planned.stages:
        if first and isinstance(stage.operator, nodes.Substream):
            raise PlanError(
                f"stage {stage.name!r} labels substreams, and stage {first.name!r} recovers by snapshots: what a tracker has "
                "been told is not undone when stages return",
                operation="plan",
                stage=stage.name,
                hint="Let all stages of this flow recover in another way, such as hf.no_sync().",
            )
    for cycle in planned.cycles:
        _check_cycle(planned, cycle)


def _check_cycle(planned: FlowPlan, cycle: frozenset[str]) -> None:
    """A cycle is captured wholly or not at all, and by no mode in which a stage waits for the marker of its own output."""
    captured = cycle & planned.region.keys()
    stages = ", ".join(sorted(cycle))
    if captured and captured != cycle:
        raise PlanError(
            f"stages {stages} form a cycle, and snapshots capture only {', '.join(sorted(captured))} of it",
            operation="plan",
            hint="Give the same hf.snapshot(...) to all of them, or to none.",
        )
    taken = planned.snapshots
    if captured and taken and taken.mode in ("aligned", "at_least_once"):
        raise PlanError(
            f"mode={taken.mode!r} cannot capture the cycle of {stages}: a stage in it would wait for a marker that comes "
            "only after it was captured itself",
            operation="plan",
            hint='Say mode="unaligned", which records what is on its way round.',
        )


def _remembers_labels(operator: Stateful | None) -> bool:
    return isinstance(operator, nodes.Substream) and operator.time is None


def _survived_by(policy: Policy) -> str:
    return next(loss for loss, tier in TIER_THAT_SURVIVES.items() if tier == policy.tiers[-1])


def _objection_to_rebuilding(planned: FlowPlan, stage: StageSpec) -> _Objection | None:
    """State can be made again from retained input only if it depends on a bounded part of it."""
    for origin in stage.inputs:
        if origin.kind == "source" and not planned.sources[origin.name].rereadable:
            return _Objection(
                f"it reads source {origin.name!r} again, which cannot be done",
                "write the rows to files first and read these with hf.files",
            )
    endless = _endless(stage.operator)
    if endless is None:
        return None
    return _Objection(
        f"it would have to keep the input without end, because {endless}",
        "aggregate over tumbling or sliding windows, whose input can be let go when they close",
    )


def _endless(operator: Stateful | None) -> str | None:
    """Why no part of a stage's input ever becomes needless; None where event time settles when it does."""
    match operator:
        case nodes.RunningAggregate():
            return "a running aggregate depends on all rows so far"
        case nodes.WindowAggregate(window=window) if isinstance(window.kind, Session):
            return "a session that goes on takes its first rows with it"
        case nodes.OwnOperator(expire_us=None):
            return "a stateful step without expire_after depends on all rows so far"
        case nodes.OwnOperator():
            return "a key of a stateful step that is touched before it expires takes its history with it"
        case nodes.Substream(time=None):
            return "whether a label was closed depends on rows before it"
        case nodes.Dedup(within_us=None):
            return "a dedup without within depends on all rows so far"
        case nodes.Dedup():
            return (
                "whether a row was accepted depends on rows before it that have expired, and these on others"
            )
        case nodes.Join(matching=matching) if matching.how != "inner":
            return "whether a row had a partner depends on rows of the other side that have expired"
        case _:
            return None


def _check_sink(planned: FlowPlan, sink: SinkSpec) -> None:
    description = sink.description
    if (
        isinstance(description, ForeachSink)
        and not description.idempotent
        and planned.guarantee != "at_least_once"
    ):
        raise PlanError(
            f"guarantee={planned.guarantee!r} cannot hold for sink {sink.name!r}: hf.foreach calls its function "
            "again for an epoch whose call a crash may have cut off",
            operation="plan",
            stage=sink.stage,
            hint="Make the function ignore a token that it has seen and declare hf.foreach(..., idempotent=True); "
            'or say hf.Flow(..., guarantee="at_least_once"); or use hf.table or hf.parquet, which keep it.',
        )


def _check_replica(planned: FlowPlan) -> None:
    """The tier `replica` needs a directory, and a directory someone who uses it."""
    users = [stage.name for stage in planned.stages if "replica" in stage.policy.tiers]
    whole = planned.survives == "machine"
    if planned.replica is None and (users or whole):
        asks = 'survives="machine"' if whole else f"the policy of stage {users[0]!r}"
        raise PlanError(
            f"{asks} needs the tier 'replica', and the flow does not say where that is",
            operation="plan",
            stage=None if whole else users[0],
            hint='Name a directory that is not lost with this machine: hf.Flow(..., replica="/mnt/backup/orders").',
        )
    if planned.replica is not None and not users and not whole:
        raise PlanError(
            f"replica={planned.replica!r} is an option that nothing reads: no stage carries files there",
            operation="plan",
            hint='Say survives="machine", give a stage hf.no_sync(("memory", "disk", "replica")), or leave replica out.',
        )
