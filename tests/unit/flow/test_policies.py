"""A recovery policy is a handful of choices, set per stage or per flow, and follows `survives` where none is set."""

from __future__ import annotations

import dataclasses

import pytest

import holdfast as hf
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.flow.policies import Files, Persist, Policy, Resume, Snapshots, Standby


def planned(flow: hf.Flow, *policies: Policy) -> FlowPlan:
    """A dedup, then a count, with a policy each where one is given."""
    rows = flow.source("in", hf.files("in/", schema="k long, at timestamp"))
    unique = rows.dedup("k", time="at", within="1 hour").named("unique")
    counts = unique.group_by("k").agg(n=hf.count()).named("counts").to(hf.discard())
    for stream, policy in zip((unique, counts), policies, strict=False):
        stream.recover(policy)
    return plan(flow)


def test_every_method_is_a_set_of_choices() -> None:
    own = {"files": Files.WORKER, "persist": Persist.NEVER, "tiers": ("memory",)}
    assert hf.gap() == Policy("gap", **own, resume=Resume.SKIP)
    assert hf.upstream_backup() == Policy("upstream_backup", **own, resume=Resume.REBUILD)
    assert hf.passive_standby(every=3) == Policy(
        "passive_standby",
        files=Files.WORKER,
        standby=Standby.WARM,
        members=2,
        resume=Resume.DELTA,
        every=3,
    )
    assert hf.active_standby(lockstep=True, members=3) == Policy(
        "active_standby", standby=Standby.HOT, members=3, lockstep=True
    )
    assert hf.strong_production() == Policy("strong_production", persist=Persist.BEFORE)
    assert hf.no_sync() == Policy("no_sync")
    assert hf.no_sync(["memory"]).tiers == ("memory",)
    assert hf.snapshot() == Policy(
        "snapshot",
        resume=Resume.RETURN,
        snapshots=Snapshots("aligned", 10_000_000, 0, 1, 600_000_000, tolerate=2),
    )
    assert hf.snapshot(
        "1 minute", "freeze", min_pause="5 seconds", max_concurrent=3, timeout="2 minutes", tolerate=0
    ).snapshots == Snapshots("freeze", 60_000_000, 5_000_000, 3, 120_000_000, tolerate=0)


@pytest.mark.parametrize("make", [hf.strong_production, hf.no_sync, hf.snapshot])
def test_a_second_member_stands_by_warm(make) -> None:
    assert (make().standby, make(members=2).standby) == (Standby.NONE, Standby.WARM)


def test_only_a_gap_and_snapshots_that_repeat_are_not_precise() -> None:
    others = hf.upstream_backup, hf.passive_standby, hf.active_standby, hf.strong_production, hf.no_sync
    assert not hf.gap().precise
    for mode in ("aligned", "unaligned", "freeze", "at_least_once"):
        policy = hf.snapshot(mode=mode)
        assert (policy.precise, policy.repeats) == (mode != "at_least_once", mode == "at_least_once")
    assert all(make().precise for make in others)


@pytest.mark.parametrize(
    ("make", "given", "why"),
    [
        (hf.passive_standby, {"every": 0}, "every=0 is not a whole number from 1 on"),
        (hf.passive_standby, {"every": 1.5}, "every=1.5 is not a whole number"),
        (hf.passive_standby, {"members": 1}, "members=1 is not a whole number from 2 on"),
        (hf.active_standby, {"members": True}, "members=True is not"),
        (hf.active_standby, {"lockstep": "no"}, "lockstep='no' is neither True nor False"),
        (hf.strong_production, {"members": 0}, "members=0 is not a whole number from 1 on"),
        (hf.no_sync, {"members": "2"}, "members='2' is not"),
        (hf.no_sync, {"tiers": ()}, "tiers=() is not a way"),
        (hf.no_sync, {"tiers": "memory"}, "tiers='memory' is not a way"),
        (hf.no_sync, {"tiers": ("disk",)}, "is not a way from memory outwards"),
        (hf.no_sync, {"tiers": ("memory", "replica")}, "is not a way from memory outwards"),
        (hf.no_sync, {"tiers": ("memory", "disk", "replica", "moon")}, "is not a way from memory outwards"),
        (
            hf.snapshot,
            {"mode": "exact"},
            "mode='exact' is not one of aligned, unaligned, at_least_once, freeze",
        ),
        (hf.snapshot, {"every": "often"}, "every='often' is not a duration"),
        (hf.snapshot, {"min_pause": 5}, "min_pause=5 is not a duration"),
        (hf.snapshot, {"max_concurrent": 0}, "max_concurrent=0 is not a whole number from 1 on"),
        (hf.snapshot, {"tolerate": -1}, "tolerate=-1 is not a whole number from 0 on"),
        (hf.snapshot, {"members": 0}, "members=0 is not a whole number from 1 on"),
    ],
)
def test_choices_that_mean_nothing_are_refused_where_they_are_written(make, given: dict, why: str) -> None:
    with pytest.raises(hf.PlanError) as caught:
        make(**given)
    assert why in caught.value.message
    assert (caught.value.operation, bool(caught.value.hint)) == ("describe", True)


@pytest.mark.parametrize("name", ["every", "timeout"])
def test_a_snapshot_takes_some_time_and_comes_after_some(name: str) -> None:
    with pytest.raises(hf.PlanError, match=f"{name}='0 seconds' is not a positive duration"):
        hf.snapshot(**{name: "0 seconds"})


@pytest.mark.parametrize(
    ("survives", "tiers"),
    [
        ("process", ("memory",)),
        ("power", ("memory", "disk")),
        ("machine", ("memory", "disk", "replica")),
    ],
)
def test_without_a_choice_files_go_as_far_as_the_flow_must_survive(survives: str, tiers: tuple) -> None:
    replica = "copy/" if survives == "machine" else None
    found = planned(hf.Flow("f", survives=survives, replica=replica))
    assert {stage.policy for stage in found.stages} == {hf.no_sync(tiers)}
    assert found.replica == replica


@pytest.mark.parametrize(
    ("survives", "tiers"),
    [
        ("process", ("memory",)),
        ("power", ("memory", "disk")),
        ("machine", ("memory", "disk", "replica")),
    ],
)
def test_what_snapshots_carry_goes_as_far_as_the_flow_must_survive(survives: str, tiers: tuple) -> None:
    replica = "copy/" if survives == "machine" else None
    found = planned(hf.Flow("f", survives=survives, replica=replica), hf.snapshot(), hf.snapshot())
    assert {stage.policy.tiers for stage in found.stages} == {tiers}


def test_the_region_is_the_stages_that_have_the_policy() -> None:
    found = planned(hf.Flow("f", recover=hf.snapshot("1 minute")))
    assert found.region == {"unique": {"source:in": None}, "counts": {"channel:unique.out": "unique"}}
    assert found.snapshots == hf.snapshot("1 minute").snapshots
    alone = planned(hf.Flow("f"), hf.no_sync(), hf.snapshot())
    assert alone.region == {"counts": {"channel:unique.out": None}}
    assert planned(hf.Flow("f")).snapshots is None


def test_a_stage_goes_by_its_own_policy_and_else_by_that_of_the_flow() -> None:
    found = planned(hf.Flow("f", recover=hf.strong_production()), hf.active_standby())
    assert [stage.policy for stage in found.stages] == [hf.active_standby(), hf.strong_production()]


def test_what_a_source_sets_aside_goes_by_the_policy_of_the_flow() -> None:
    flow = hf.Flow("f", recover=hf.active_standby())
    rows = flow.source("in", hf.files("in/", schema="k long", on_error="quarantine"))
    rows.recover(hf.no_sync()).to(hf.discard())
    assert [stage.policy for stage in plan(flow).stages] == [hf.no_sync(), hf.active_standby()]


def test_the_policy_is_not_part_of_the_fingerprint() -> None:
    one, other = planned(hf.Flow("f")), planned(hf.Flow("f", recover=hf.passive_standby()))
    assert [s.fingerprint() for s in one.stages] == [s.fingerprint() for s in other.stages]


def test_only_what_these_functions_return_is_a_policy() -> None:
    rows = hf.Flow("f").source("in", hf.rows([{"k": 1}]))
    for wrong in (hf.no_sync, "no_sync", None):
        with pytest.raises(hf.PlanError, match="is not a recovery policy"):
            rows.recover(wrong)
    with pytest.raises(hf.PlanError, match="is not a recovery policy"):
        hf.Flow("f", recover="no_sync")
    with pytest.raises(dataclasses.FrozenInstanceError):
        hf.no_sync().members = 2


def test_a_step_inside_a_stage_has_no_policy_of_its_own() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.rows([{"k": 1}]))
    inside = rows.transform(lambda df: df).recover(hf.no_sync())
    inside.union(rows).group_by("k").agg(n=hf.count()).named("a").to(hf.discard())
    inside.group_by("k").agg(n=hf.count()).named("b").group_by("n").agg(m=hf.count()).to(hf.discard())
    with pytest.raises(
        hf.PlanError, match="this transform is no stage of its own: it is part of 'a', 'b' Call"
    ) as e:
        plan(flow)
    assert "Call recover on the stream that such a stage makes" in str(e.value.hint)
    del flow.policies[inside.node]
    rows.recover(hf.no_sync())
    with pytest.raises(hf.PlanError, match="source 'in' is no stage of its own"):
        plan(flow)


def test_a_policy_where_nothing_is_read_is_an_error() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.rows([{"k": 1}])).to(hf.discard())
    rows.group_by("k").agg(n=hf.count()).recover(hf.no_sync())
    with pytest.raises(hf.PlanError, match="this running aggregate leads to no stage: no sink reads"):
        plan(flow)


def test_a_stream_that_goes_to_a_sink_is_a_stage_also_where_others_take_it_in() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.rows([{"k": 1}])).to(hf.discard()).recover(hf.strong_production())
    rows.group_by("k").agg(n=hf.count()).to(hf.discard())
    assert [stage.policy.name for stage in plan(flow).stages] == ["strong_production", "no_sync"]
