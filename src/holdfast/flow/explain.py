"""What a flow will do, told from its description alone: nothing is run, and no session is started."""

from __future__ import annotations

from holdfast.core.duration import spelled
from holdfast.core.json import Json
from holdfast.flow.flow_plan import FlowPlan, StageSpec
from holdfast.flow.nodes import name_of
from holdfast.flow.policies import Persist, Policy, Resume, Snapshots, Standby
from holdfast.flow.prefixes import Apply, Concat, Input, Prefix, Read, functions, reads
from holdfast.flow.updates import stages_of_updates


def explain(plan: FlowPlan) -> Json:
    """Sources, stages in the order in which rows pass them, and sinks, each with what it promises."""
    return {
        "flow": plan.name,
        "guarantee": plan.guarantee,
        "survives": plan.survives,
        "replica": plan.replica,
        "tracker": plan.tracker,
        "trigger": None if plan.trigger_us is None else spelled(plan.trigger_us),
        "groups": [{"name": group.name, "stages": list(group.stages)} for group in plan.groups],
        "sources": [
            {
                "name": name,
                **description.facts,
                "rereadable": description.rereadable,
                "read_by": _readers(plan, Input("source", name)),
            }
            for name, description in plan.sources.items()
        ],
        "tables": [
            {"name": name, **spec.facts, "read_by": _enriched(plan, name)}
            for name, spec in plan.tables.items()
        ],
        "feedback": [
            {"name": loop.name, "reads": f"channel:{loop.stage}.out", "schema": loop.schema}
            for loop in plan.loops
        ],
        "stages": [_stage(plan, stage) for stage in plan.stages],
        "sinks": [
            {"name": sink.name, "reads": sink.input.id, **sink.description.facts} for sink in plan.sinks
        ],
    }


def _stage(plan: FlowPlan, stage: StageSpec) -> Json:
    return {
        "name": stage.name,
        "cut_because": _cut_because(plan, stage),
        "reads": [origin.id for origin in stage.inputs],
        "feedback": [origin.id for origin in stage.inputs if origin in stage.feedback],
        "as_rows": [read.input.id for prefix in stage.sides for read in reads(prefix) if read.as_rows],
        "prefix": {
            "steps": [name_of(function) for prefix in stage.sides for function in functions(prefix)],
            "unions": sum(_unions(prefix) for prefix in stage.sides),
        },
        "operator": stage.operator.facts if stage.operator else None,
        "gives": "updates" if stage.name in stages_of_updates(plan) else "rows",
        "channels": [
            {"name": channel.id, "port": channel.port, "read_by": _readers(plan, channel)}
            for channel in (Input("channel", stage.name, port) for port in stage.ports)
        ],
        "group": plan.group_of(stage.name).name,
        "recovery": _recovery(stage.policy),
        "fingerprint": stage.fingerprint(),
    }


def _cut_because(plan: FlowPlan, stage: StageSpec) -> str:
    if stage.operator:
        return "it keeps state"
    return "a sink reads it" if any(s.stage == stage.name for s in plan.sinks) else "it is fed back"


def _recovery(policy: Policy) -> Json:
    """The choices of a policy; what has no meaning under it is null."""
    return {
        "policy": policy.name,
        "class": _class(policy),
        "files": policy.files.value,
        "persist": policy.persist.value,
        "tiers": list(policy.tiers),
        "every": policy.every if policy.resume is Resume.DELTA else None,
        "standby": policy.standby.value,
        "members": policy.members,
        "lockstep": policy.lockstep if policy.standby is Standby.HOT else None,
        "resume": policy.resume.value,
        "snapshots": _snapshots(policy.snapshots) if policy.snapshots else None,
        "persisted": _persisted(policy),
        "after_failure": _after_failure(policy),
    }


def _snapshots(taken: Snapshots) -> Json:
    return {
        "mode": taken.mode,
        "every": spelled(taken.every_us),
        "min_pause": spelled(taken.min_pause_us),
        "max_concurrent": taken.max_concurrent,
        "timeout": spelled(taken.timeout_us),
        "tolerate": taken.tolerate,
    }


def _class(policy: Policy) -> str:
    return "precise" if policy.precise else "rollback" if policy.repeats else "gap"


def _persisted(policy: Policy) -> str:
    """What is written in normal operation beside the plans and manifests, which are in the ledger always."""
    match policy.resume, policy.persist:
        case Resume.SKIP, _:
            return "nothing"
        case Resume.REBUILD, _:
            return "the input, until the state no longer depends on it"
        case Resume.DELTA, _:
            epochs = "every epoch" if policy.every == 1 else f"every {policy.every} epochs together"
            return f"the layers of {epochs}, as a delta in the standby's own directory"
        case Resume.RETURN, _:
            return "at each snapshot, the layers and segments since the one before"
        case _, Persist.BEFORE:
            return "layers and segments of each epoch, durable before its commit"
        case _ if policy.tiers == ("memory",):
            return "layers and segments, which outlive the process and not a power loss"
        case _:
            return f"layers and segments, carried to {' and '.join(policy.tiers[1:])} behind the commit"


def _after_failure(policy: Policy) -> str:
    match policy.resume, policy.standby:
        case Resume.SKIP, _:
            return "start with empty state at the newest input, and report what was skipped"
        case Resume.REBUILD, _:
            return "replay the retained input onto an empty state; what was published is not published again"
        case Resume.DELTA, _:
            return "the standby goes on from its last delta, and replays the epochs after it"
        case Resume.RETURN, _:
            return "all stages that have it return to their last complete snapshot; their sources are read again from there"
        case _, Standby.HOT:
            return "nothing to do: a member that is left commits the next epoch"
        case _ if policy.persist is Persist.BEFORE:
            return "resume at the last commit, with all its files there"
        case _:
            return "resume at the last commit; files that are lost are made again by their plans"


def _readers(plan: FlowPlan, origin: Input) -> list[str]:
    stages = [f"stage:{stage.name}" for stage in plan.stages if origin in stage.inputs]
    return stages + [f"sink:{sink.name}" for sink in plan.sinks if sink.input == origin]


def _enriched(plan: FlowPlan, table: str) -> list[str]:
    return [f"stage:{stage.name}" for stage in plan.stages if table in stage.tables]


def _unions(prefix: Prefix) -> int:
    """How many unions a prefix has."""
    match prefix:
        case Read():
            return 0
        case Apply(child=child):
            return _unions(child)
        case Concat(children=children):
            return 1 + sum(_unions(child) for child in children)
