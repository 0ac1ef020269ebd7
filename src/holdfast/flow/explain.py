"""What a flow will do, told from its description alone: nothing is run, and no session is started."""

from __future__ import annotations

from holdfast.core.json import Json
from holdfast.flow.planner import Apply, Concat, FlowPlan, Input, Prefix, Read, StageSpec

# Where files are carried to, by what the flow survives; docs/GUARANTEES.md says what that means.
_TIERS = {"process": ["memory"], "power": ["memory", "disk"]}


def explain(plan: FlowPlan) -> Json:
    """Sources, stages in the order in which rows pass them, and sinks, each with what it promises."""
    return {
        "flow": plan.name,
        "guarantee": plan.guarantee,
        "survives": plan.survives,
        "sources": [
            {"name": name, **description.facts, "read_by": _readers(plan, Input("source", name))}
            for name, description in plan.sources.items()
        ],
        "stages": [_stage(plan, stage) for stage in plan.stages],
        "sinks": [
            {"name": sink.name, "reads": sink.input.id, **sink.description.facts} for sink in plan.sinks
        ],
    }


def _stage(plan: FlowPlan, stage: StageSpec) -> Json:
    return {
        "name": stage.name,
        "cut_because": stage.cut_because,
        "reads": [origin.id for origin in stage.inputs],
        "prefix": {"transforms": _count(stage.prefix, Apply), "unions": _count(stage.prefix, Concat)},
        "operator": stage.operator.facts if stage.operator else None,
        "channels": [
            {"name": channel.id, "port": channel.port, "read_by": _readers(plan, channel)}
            for channel in (Input("channel", stage.name, port) for port in stage.ports)
        ],
        "recovery": {
            "policy": "no_sync",
            "tiers": _TIERS[plan.survives],
            "after_failure": "resume at the last commit; files that are lost are made again by their plans",
        },
        "fingerprint": stage.fingerprint(),
    }


def _readers(plan: FlowPlan, origin: Input) -> list[str]:
    stages = [f"stage:{stage.name}" for stage in plan.stages if origin in stage.inputs]
    return stages + [f"sink:{sink.name}" for sink in plan.sinks if sink.input == origin]


def _count(prefix: Prefix, kind: type[Apply] | type[Concat]) -> int:
    """How many steps of a kind a prefix has."""
    here = int(isinstance(prefix, kind))
    match prefix:
        case Read():
            return here
        case Apply(child=child):
            return here + _count(child, kind)
        case Concat(children=children):
            return here + sum(_count(child, kind) for child in children)
