"""Flows are cut into stages where state or a sink asks for it, and nowhere else."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.flow.fingerprint import is_other_code
from holdfast.flow.planner import plan
from holdfast.flow.prefixes import Apply, Concat, Read


def source(flow: hf.Flow, name: str = "in"):
    return flow.source(name, hf.files("in/", schema="k long"))


def test_stateless_steps_are_folded_into_the_stage_that_reads_them() -> None:
    flow = hf.Flow("f")
    source(flow).transform(lambda df: df).group_by("k").agg(n=hf.count()).named("n").to(hf.discard())
    (stage,) = plan(flow).stages
    assert stage.name == "n"
    assert isinstance(stage.prefix, Apply)
    assert [origin.id for origin in stage.inputs] == ["source:in"]


def test_two_stateful_steps_are_two_stages_with_a_channel_between() -> None:
    flow = hf.Flow("f")
    first = source(flow).group_by("k").agg(n=hf.count())
    first.as_rows().group_by("n").agg(keys=hf.count()).to(hf.discard())
    one, two = plan(flow).stages
    assert (one.name, two.name) == ("aggregate-1", "aggregate-2")
    assert two.prefix == Read(two.inputs[0], as_rows=True)
    assert two.inputs[0].id == "channel:aggregate-1.out"
    assert plan(flow).consumers("aggregate-1") == ["stage:aggregate-2"]


def test_a_union_reads_both_and_a_source_once() -> None:
    flow = hf.Flow("f")
    left, right = source(flow, "a"), source(flow, "b")
    left.union(right, left).to(hf.discard())
    (stage,) = plan(flow).stages
    assert stage.name == "rows-1"
    assert isinstance(stage.prefix, Concat)
    assert [origin.name for origin in stage.inputs] == ["a", "b"]


def test_names_of_unnamed_stages_do_not_depend_on_the_sinks() -> None:
    def names(sinks_first: bool) -> set[str]:
        flow = hf.Flow("f")
        one = source(flow).group_by("k").agg(n=hf.count())
        two = one.as_rows().group_by("n").agg(m=hf.count())
        for stream in (one, two) if sinks_first else (two, one):
            stream.to(hf.discard())
        return {stage.name for stage in plan(flow).stages}

    assert names(True) == names(False) == {"aggregate-1", "aggregate-2"}


def test_the_fingerprint_follows_the_code() -> None:
    def fingerprint(variant: int) -> str:
        flow = hf.Flow("f")
        rows = source(flow)
        if variant == 1:
            rows = rows.transform(lambda df: df.where("k > 1"))
        if variant == 2:
            rows = rows.transform(lambda df: df.where("k > 2"))
        rows.group_by("k").agg(n=hf.count()).to(hf.discard())
        return plan(flow).stages[0].fingerprint()

    assert fingerprint(1) == fingerprint(1)
    assert len({fingerprint(0), fingerprint(1), fingerprint(2)}) == 3


def test_what_cannot_be_planned_says_so() -> None:
    flow = hf.Flow("f")
    rows = source(flow)
    with pytest.raises(hf.PlanError, match="no sink"):
        plan(flow)
    with pytest.raises(hf.PlanError, match="two sources named"):
        source(flow)
    with pytest.raises(hf.PlanError, match="cannot name a stage"):
        rows.named("a/b")
    with pytest.raises(hf.PlanError, match="has the name of a key"):
        rows.group_by("k").agg(k=hf.count())
    with pytest.raises(hf.PlanError, match="is not one of"):
        hf.Flow("g", guarantee="maybe")
    with pytest.raises(hf.PlanError, match="is not one of"):
        hf.Flow("g", survives="anything")
    with pytest.raises(hf.PlanError, match="not an aggregate"):
        rows.group_by("k").agg(n="count")
    rows.group_by("k").agg(n=hf.count()).named("x").to(hf.discard())
    with pytest.raises(hf.PlanError, match="two stages named 'x'"):
        rows.group_by("k").agg(n=hf.count()).named("x")


def test_what_a_source_sets_aside_is_the_output_of_a_stage_of_its_own() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.files("in/", schema="k long", on_error="quarantine"))
    rows.to(hf.discard())
    counted = plan(flow)
    assert [stage.name for stage in counted.stages] == ["rows-1", "in-quarantine"]
    assert [(sink.name, sink.stage) for sink in counted.sinks] == [
        ("rows-1-sink-1", "rows-1"),
        ("in-quarantine-counted", "in-quarantine"),
    ]
    (origin,) = counted.stages[1].inputs
    assert (origin.id, counted.stages[1].keeps_malformed) == ("source:in#quarantine", True)
    assert not counted.stages[0].keeps_malformed
    rows.quarantine_to(hf.discard()).quarantine_to(hf.discard())
    kept = plan(flow)
    assert [stage.name for stage in kept.stages] == ["rows-1", "in-quarantine"]
    assert [sink.name for sink in kept.sinks] == ["rows-1-sink-1", "in-quarantine-1", "in-quarantine-2"]
    assert kept.stages[0].side_ports == frozenset()


def test_a_quarantine_needs_a_source_that_sets_aside_and_a_name_of_its_own() -> None:
    flow = hf.Flow("f")
    with pytest.raises(hf.PlanError, match="sets nothing aside") as caught:
        flow.source("in", hf.files("in/", schema="k long")).quarantine_to(hf.discard())
    assert 'on_error="quarantine"' in str(caught.value)
    rows = flow.source("x", hf.files("in/", schema="k long", on_error="quarantine"))
    rows.group_by("k").agg(n=hf.count()).named("x-quarantine").to(hf.discard())
    with pytest.raises(hf.PlanError, match="two stages named 'x-quarantine'"):
        plan(flow)


def test_the_public_names_are_these() -> None:
    assert {*hf.__all__} >= {
        "Flow", "files", "rows", "generate", "parquet", "table", "foreach", "discard", "count", "sum", "min", "max", "avg",
        "stddev", "variance", "HoldfastError", "PlanError", "FencedError", "each_key", "Context",
        "gap", "upstream_backup", "passive_standby", "active_standby", "strong_production", "no_sync",
    }  # fmt: skip
    assert all(hasattr(hf, name) for name in hf.__all__)


def test_only_what_this_version_recorded_can_be_told_to_be_other_code() -> None:
    flow = hf.Flow("f")
    source(flow).to(hf.discard())
    now = plan(flow).stages[0].fingerprint()
    assert not is_other_code(now, now)
    assert is_other_code(f"{now[:-1]}x", now)
    assert not is_other_code("0123456789abcdef-00000000-ansi", now)
