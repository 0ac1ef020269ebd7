"""The same flow with one recovery policy after the other, and what each promises for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.core.duration import spelled
from holdfast.core.errors import PlanError
from holdfast.flow import guarantee, policies
from holdfast.flow.endpoints import ForeachSink
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.policies import Policy, Resume, Standby
from holdfast.verify.classes import Recovery

AS_WRITTEN = "as-written"

# Runs are short: with snapshots seldom, a crash would find none to return to but the first.
SNAPSHOTS_EVERY_US = 500_000
_OFTEN = spelled(SNAPSHOTS_EVERY_US)

POLICIES: dict[str, Callable[[], Policy]] = {
    "gap": policies.gap,
    "upstream_backup": policies.upstream_backup,
    "passive_standby": policies.passive_standby,
    "active_standby": policies.active_standby,
    "strong_production": policies.strong_production,
    "no_sync": policies.no_sync,
    "snapshot": lambda: policies.snapshot(_OFTEN),
    "snapshot_unaligned": lambda: policies.snapshot(_OFTEN, "unaligned"),
    "snapshot_at_least_once": lambda: policies.snapshot(_OFTEN, "at_least_once"),
}


# What has no meaning for one process: `all` tries it only where there are standbys.
LOCKSTEP = "active_standby_lockstep"
WITH_STANDBYS: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    LOCKSTEP: lambda: policies.active_standby(lockstep=True),
}

# What a flow may at most promise under a policy that is not precise: one that skips, and one that repeats.
_GUARANTEES = ("at_most_once", "at_least_once")


def variant(plan: FlowPlan, name: str) -> tuple[FlowPlan, list[str]]:
    """The flow with a policy for all stages that can have it; the others, with the reason, keep their own."""
    if name == AS_WRITTEN:
        return plan, []
    policy = _made(name).reaching(plan.survives)
    base = plan if policy.precise else replace(plan, guarantee=_GUARANTEES[policy.repeats])
    refused = {stage.name: guarantee.objection(base, stage, policy) for stage in base.stages}
    stages = tuple(stage if refused[stage.name] else replace(stage, policy=policy) for stage in base.stages)
    why = [f"stage {stage} keeps its own policy: {reason}" for stage, reason in refused.items() if reason]
    if len(why) == len(stages):
        raise PlanError(f"no stage can recover by {name}: {why[0]}", operation="verify")
    return replace(base, stages=stages), why


def another(plan: FlowPlan) -> FlowPlan:
    """The flow with another policy for every stage: one that goes on with the files that are there."""
    return replace(plan, stages=tuple(replace(stage, policy=_other(stage.policy)) for stage in plan.stages))


def _other(policy: Policy) -> Policy:
    other = policies.no_sync(policy.tiers)
    return policies.strong_production() if policy.name == other.name else other


def with_standbys(plan: FlowPlan, standbys: int) -> tuple[FlowPlan, list[str]]:
    """The flow with so many standbys for every stage that can have them; those that cannot, in words."""
    stages = tuple(
        replace(stage, policy=_standing_by(stage.policy, 1 + standbys))
        if _can_stand_by(stage.policy)
        else stage
        for stage in plan.stages
    )
    made = replace(plan, stages=stages)
    alone = [group for group in made.groups if all(policy.members == 1 for policy in made.policies_of(group))]
    why = [f"nobody stands by for {', '.join(group.stages)}: a new process goes on" for group in alone]
    return made, why


def _can_stand_by(policy: Policy) -> bool:
    return policy.resume not in (Resume.SKIP, Resume.REBUILD)


def _standing_by(policy: Policy, members: int) -> Policy:
    standby = Standby.WARM if policy.standby is Standby.NONE else policy.standby
    return replace(policy, standby=standby, members=max(policy.members, members))


def anomalies(plan: FlowPlan) -> list[str]:
    """Which stages may count rows twice after a failure, and why."""
    if not any(stage.policy.repeats for stage in plan.stages):
        return []
    return [
        f"stage {name} does not wait for the markers of its {len(inputs)} inputs: rows that it has read beyond one "
        "count again after a failure"
        for name, inputs in plan.region.items()
        if sum(producer is not None for producer in inputs.values()) > 1
    ]


def promised(plan: FlowPlan) -> Recovery:
    """The class that the flow's policies and sinks promise together."""
    if any(stage.policy.repeats for stage in plan.stages):
        return Recovery.DIVERGENT
    if any(not stage.policy.precise for stage in plan.stages):
        return Recovery.GAP
    once = all(
        sink.description.idempotent for sink in plan.sinks if isinstance(sink.description, ForeachSink)
    )
    return Recovery.PRECISE if once else Recovery.REPEATING


def _made(name: str) -> Policy:
    if name not in WITH_STANDBYS:
        raise PlanError(
            f"there is no recovery policy {name!r}",
            operation="verify",
            hint=f"The policies are {', '.join(WITH_STANDBYS)}; {AS_WRITTEN} leaves the flow as it is.",
        )
    return WITH_STANDBYS[name]()
