"""What a flow promises is held against its sources, stages and sinks, and what cannot hold says what would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

import holdfast as hf
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan
from holdfast.flow.policies import Policy


@dataclass(frozen=True)
class SocketSource:
    """A source that is heard once: nothing of the kind is on offer, so the check needs one of its own."""

    schema: str = "k long"
    idle_after_us: int | None = None
    quarantines: ClassVar[bool] = False
    rereadable: ClassVar[bool] = False
    facts: ClassVar[dict[str, str]] = {"kind": "socket"}


def keep(rows, state, context): ...


STEPS: dict[str, Callable[[Stream], Stream]] = {
    "running": lambda rows: rows.group_by("k").agg(n=hf.count()),
    "tumbling": lambda rows: rows.group_by("k").window("at", tumbling="1 hour").agg(n=hf.count()),
    "sliding": lambda rows: rows.group_by("k").window("at", sliding=("2 hours", "1 hour")).agg(n=hf.count()),
    "session": lambda rows: rows.group_by("k").window("at", session="1 hour").agg(n=hf.count()),
    "dedup": lambda rows: rows.dedup("k", time="at", within="1 hour"),
    "left join": lambda rows: rows.join(
        rows, on="k", time=("at", "at"), within=("0 seconds", "1 hour"), how="left"
    ),
    "semi join": lambda rows: rows.join(
        rows, on="k", time=("at", "at"), within=("0 seconds", "1 hour"), how="semi"
    ),
    "join": lambda rows: rows.join(rows, on="k", time=("at", "at"), within=("0 seconds", "1 hour")),
    "stateful": lambda rows: rows.stateful(keep, by=["k"], state="n long", output="k long"),
    "expiring": lambda rows: rows.stateful(
        keep, by=["k"], state="n long", output="k long", time="at", expire_after="1 hour"
    ),
    "stateless": lambda rows: rows.transform(lambda df: df),
}


def planned(flow: hf.Flow, step: str = "running", policy: Policy | None = None) -> None:
    rows = flow.source("in", hf.files("in/", schema="k long, at timestamp"))
    stream = STEPS[step](rows).named("it").to(hf.discard())
    plan((stream.recover(policy) if policy else stream).flow)


def refused(flow: hf.Flow, step: str = "running", policy: Policy | None = None) -> hf.PlanError:
    with pytest.raises(hf.PlanError) as caught:
        planned(flow, step, policy)
    assert caught.value.operation == "plan"
    return caught.value


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_gap_is_refused_where_no_row_may_be_left_out(guarantee: str) -> None:
    error = refused(hf.Flow("f", guarantee=guarantee), "tumbling", hf.gap())
    assert error.stage == "it"
    assert "stage 'it' cannot recover by gap: it skips rows after a failure" in error.message
    assert guarantee in error.message
    names = "no_sync", "strong_production", "passive_standby", "active_standby", "upstream_backup"
    for way in (*(f"hf.{name}()" for name in names), 'guarantee="at_most_once"'):
        assert way in str(error.hint)
    assert "hf.gap()" not in str(error.hint)
    planned(hf.Flow("f", guarantee="at_most_once"), "tumbling", hf.gap())


def test_a_gap_far_above_the_sink_is_found() -> None:
    flow = hf.Flow("f")
    rows = flow.source("in", hf.rows([{"k": 1}]))
    first = rows.group_by("k").agg(n=hf.count()).named("first").recover(hf.gap())
    first.as_rows().group_by("n").agg(m=hf.count()).recover(hf.strong_production()).to(hf.discard())
    with pytest.raises(hf.PlanError, match="stage 'first' cannot recover by gap"):
        plan(flow)


def test_the_alternatives_are_those_that_hold_for_the_stage() -> None:
    assert "upstream_backup" not in str(refused(hf.Flow("f"), "running", hf.gap()).hint)
    far = refused(hf.Flow("f", survives="machine", replica="copy/"), "running", hf.gap())
    assert far.hint is not None
    assert "hf.no_sync(('memory', 'disk', 'replica')), hf.snapshot()." in far.hint


@pytest.mark.parametrize("step", ["tumbling", "sliding", "join", "stateless"])
def test_upstream_backup_is_for_state_whose_input_event_time_lets_go(step: str) -> None:
    planned(hf.Flow("f", survives="power"), step, hf.upstream_backup())


@pytest.mark.parametrize(
    "policy", [hf.upstream_backup(), hf.passive_standby()], ids=lambda policy: policy.name
)
def test_what_lies_on_the_machine_does_not_survive_it(policy: Policy) -> None:
    error = refused(hf.Flow("f", survives="machine", replica="copy/"), "tumbling", policy)
    assert "on this machine" in error.message
    assert 'survives="power"' in str(error.hint)


def streamed(flow: hf.Flow, **given: bool) -> None:
    heard = hf.read_stream(lambda spark: spark.readStream.format("rate").load(), schema="value long", **given)
    flow.source("heard", heard).transform(lambda df: df).to(hf.discard())
    plan(flow)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_stream_that_cannot_resume_promises_no_row(guarantee: str) -> None:
    with pytest.raises(
        hf.PlanError, match="source 'heard': with resumes=False, rows that were received"
    ) as caught:
        streamed(hf.Flow("f", guarantee=guarantee), resumes=False)
    assert 'guarantee="at_most_once"' in str(caught.value.hint)
    streamed(hf.Flow("f", guarantee="at_most_once"), resumes=False)
    streamed(hf.Flow("f", guarantee=guarantee))


def test_the_log_of_a_stream_does_not_survive_the_machine() -> None:
    with pytest.raises(hf.PlanError, match="the log of hf.read_stream is on this machine only"):
        streamed(hf.Flow("f", survives="machine", replica="copy/"))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("running", "a running aggregate depends on all rows so far"),
        ("session", "a session that goes on takes its first rows with it"),
        ("stateful", "without expire_after depends on all rows so far"),
        ("expiring", "touched before it expires takes its history with it"),
        ("dedup", "depends on rows before it that have expired"),
        ("left join", "depends on rows of the other side that have expired"),
        ("semi join", "depends on rows of the other side that have expired"),
    ],
)
def test_upstream_backup_over_endless_history_is_refused(step: str, why: str) -> None:
    error = refused(hf.Flow("f"), step, hf.upstream_backup())
    assert "stage 'it' cannot recover by upstream_backup" in error.message
    assert why in error.message
    assert (
        "hf.no_sync(), hf.strong_production(), hf.passive_standby(), hf.active_standby(), hf.snapshot()."
        in str(error.hint)
    )
    at_most = refused(hf.Flow("f", guarantee="at_most_once"), step, hf.upstream_backup())
    assert "hf.gap()" in str(at_most.hint)


def test_the_default_of_a_flow_is_held_against_every_stage() -> None:
    assert refused(hf.Flow("f", recover=hf.upstream_backup())).stage == "it"
    planned(hf.Flow("f", recover=hf.upstream_backup()), "running", hf.no_sync())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_source_that_cannot_be_read_again_is_refused(guarantee: str) -> None:
    def planned(guarantee: str, policy: Policy) -> None:
        flow = hf.Flow("f", guarantee=guarantee, recover=policy)
        plan(flow.source("heard", SocketSource()).named("it").to(hf.discard()).flow)

    with pytest.raises(
        hf.PlanError, match="cannot hold for source 'heard': it cannot be read again"
    ) as caught:
        planned(guarantee, hf.no_sync())
    for way in ("hf.files", 'guarantee="at_most_once"'):
        assert way in str(caught.value.hint)
    planned("at_most_once", hf.gap())
    with pytest.raises(hf.PlanError, match="it reads source 'heard' again, which cannot be done"):
        planned("at_most_once", hf.upstream_backup())


def test_todays_sources_can_all_be_read_again() -> None:
    sources = hf.files("in/", schema="k long"), hf.rows([{"k": 1}]), hf.generate(rows=1)
    assert all(source.rereadable for source in sources)


@pytest.mark.parametrize(
    ("survives", "policy", "instead"),
    [
        ("power", hf.no_sync(("memory",)), "process"),
        ("machine", hf.no_sync(), "power"),
        ("machine", hf.strong_production(), "power"),
        ("machine", hf.active_standby(), "power"),
    ],
)
def test_files_that_a_successor_needs_must_get_as_far_as_the_flow_survives(
    survives: str, policy: Policy, instead: str
) -> None:
    replica = "copy/" if survives == "machine" else None
    error = refused(hf.Flow("f", survives=survives, replica=replica), "running", policy)
    assert f"survives={survives!r} needs them on the tier" in error.message
    assert f"survives={instead!r}" in str(error.hint)
    planned(hf.Flow("f", survives=instead), "running", policy)


def test_files_may_go_further_than_the_flow_must_survive() -> None:
    planned(hf.Flow("f", survives="process"), "running", hf.no_sync())
    far = hf.no_sync(("memory", "disk", "replica"))
    planned(hf.Flow("f", survives="process", replica="copy/"), "running", far)


def test_policies_that_do_not_go_by_tiers_survive_by_their_standby_or_lose_all() -> None:
    planned(hf.Flow("f", survives="power"), "running", hf.passive_standby())
    planned(hf.Flow("f", survives="power", guarantee="at_most_once"), "running", hf.gap())
    far = hf.Flow("f", survives="machine", replica="copy/", guarantee="at_most_once")
    planned(far, "running", hf.gap())


def test_the_replica_needs_a_directory_and_the_directory_a_use() -> None:
    whole = refused(hf.Flow("f", survives="machine"))
    assert "survives=\"machine\" needs the tier 'replica'" in whole.message
    one = refused(hf.Flow("f"), "running", hf.no_sync(("memory", "disk", "replica")))
    assert (one.stage, "the policy of stage 'it' needs the tier 'replica'" in one.message) == ("it", True)
    for error in (whole, one):
        assert "replica=" in str(error.hint)
    unused = refused(hf.Flow("f", replica="copy/"))
    assert "replica='copy/' is an option that nothing reads" in unused.message
    for wrong in ("", 1):
        with pytest.raises(hf.PlanError, match="does not name a directory"):
            hf.Flow("f", replica=wrong)


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "freeze"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_snapshots_that_wait_for_markers_hold_under_every_guarantee(mode: str, guarantee: str) -> None:
    planned(hf.Flow("f", guarantee=guarantee), "running", hf.snapshot(mode=mode))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_most_once"])
def test_snapshots_that_count_rows_twice_are_refused_where_none_may(guarantee: str) -> None:
    error = refused(hf.Flow("f", guarantee=guarantee), "running", hf.snapshot(mode="at_least_once"))
    assert error.stage == "it"
    assert "stage 'it' cannot recover by snapshot: its stages do not wait" in error.message
    assert guarantee in error.message
    assert error.hint is not None
    assert "hf.snapshot()" in error.hint
    assert 'say mode="aligned" or mode="unaligned", or hf.Flow(..., guarantee="at_least_once")' in error.hint
    planned(hf.Flow("f", guarantee="at_least_once"), "running", hf.snapshot(mode="at_least_once"))


def region(*chosen: Policy) -> None:
    flow = hf.Flow("f")
    stream = flow.source("in", hf.rows([{"k": 1}]))
    for number, policy in enumerate(chosen):
        stream = stream.as_rows().group_by("k").agg(k2=hf.count()).named(f"s{number}").recover(policy)
        stream = stream.transform(lambda df: df.select("k"))
    stream.named("last").recover(hf.no_sync()).to(hf.discard())
    plan(flow)


def test_the_stages_of_a_region_are_captured_in_one_way() -> None:
    region(hf.snapshot(), hf.no_sync(), hf.snapshot())
    region(hf.snapshot(), hf.snapshot(members=2))
    for other in (hf.snapshot("1 minute"), hf.snapshot(mode="unaligned"), hf.snapshot(tolerate=0)):
        with pytest.raises(
            hf.PlanError, match="'s0' and 's2' are to be captured as one, but in different"
        ) as e:
            region(hf.snapshot(), hf.no_sync(), other)
        assert (e.value.stage, "Make one policy = hf.snapshot(...)" in str(e.value.hint)) == ("s2", True)


def loop_of(*chosen: Policy) -> None:
    """A cycle of two stages, and a stage behind it."""
    flow = hf.Flow("f", guarantee="at_least_once")
    back = flow.feedback("again", schema="k long")
    first = (
        flow.source("in", hf.rows([{"k": 1}]))
        .union(back)
        .as_rows()
        .group_by("k")
        .agg(n=hf.count())
        .named("first")
    )
    second = first.transform(lambda df: df.select("k")).named("second")
    back.close_with(second).to(hf.discard())
    for stream, policy in zip((first, second), chosen, strict=True):
        stream.recover(policy)
    plan(flow)


@pytest.mark.parametrize("mode", ["aligned", "at_least_once"])
def test_no_mode_that_waits_for_its_own_marker_captures_a_cycle(mode: str) -> None:
    loop_of(*[hf.snapshot(mode="unaligned")] * 2)
    with pytest.raises(hf.PlanError, match=f"mode='{mode}' cannot capture the cycle of first, second") as e:
        loop_of(*[hf.snapshot(mode=mode)] * 2)
    assert "unaligned" in str(e.value.hint)


def test_a_cycle_is_captured_wholly_or_not_at_all() -> None:
    with pytest.raises(hf.PlanError, match="first, second form a cycle, and snapshots capture only first"):
        loop_of(hf.snapshot(mode="unaligned"), hf.no_sync())


def test_substreams_and_snapshots_do_not_go_together() -> None:
    flow = hf.Flow("f", recover=hf.snapshot())
    rows = flow.source("in", hf.rows([{"k": 1, "last": True}]))
    rows.substream(by="k", closed_when="last").named("labelled").to(hf.discard())
    with pytest.raises(hf.PlanError, match="'labelled' labels substreams") as e:
        plan(flow)
    assert "hf.no_sync()" in str(e.value.hint)
