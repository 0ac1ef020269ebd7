"""Event time as a user describes it: what is refused and why, and the stages that windows and dedup become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.flow import nodes
from holdfast.flow.flow import GroupedStream, Stream
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.flow.prefixes import Input, Read
from holdfast.flow.windows import EventTime, Session, Sliding, Window

SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000


def source(flow: hf.Flow, name: str = "in") -> Stream:
    return flow.source(name, hf.files("in/", schema="k long, id long, ts timestamp"))


def grouped(*keys: str) -> GroupedStream:
    return source(hf.Flow("f")).group_by(*(keys or ("k",)))


def window(**arguments: Any) -> Window:
    found = grouped().window("ts", **arguments).windows
    assert found is not None
    return found


def refusal(describe: Callable[[], object]) -> tuple[str, str | None]:
    """What the user is told: the message and the hint."""
    with pytest.raises(hf.PlanError) as refused:
        describe()
    assert refused.value.operation == "describe"
    return refused.value.message, refused.value.hint


# What a window is.


def test_a_tumbling_window_is_a_sliding_one_that_slides_by_its_size() -> None:
    described = window(tumbling="1 minute")
    assert described == Window(EventTime("ts", 0, None), Sliding(MINUTE, MINUTE), "final")
    assert described == window(sliding=("60 s", "1 minute"))


def test_every_part_of_a_window_is_kept() -> None:
    described = window(sliding=("1 hour", "7 minutes"), late="10 s", emit="updates", max_ahead="1 hour")
    assert described == Window(EventTime("ts", 10 * SECOND, HOUR), Sliding(HOUR, 7 * MINUTE), "updates")
    assert window(sliding=["2 s", "1 s"]).kind == Sliding(2 * SECOND, SECOND)
    assert window(session="30 s", late="1 s") == Window(
        EventTime("ts", SECOND, None), Session(30 * SECOND), "final"
    )


def test_nothing_ahead_of_the_clock_is_a_bound_and_none_is_no_bound() -> None:
    assert window(tumbling="1 s", max_ahead="0 s").time.max_ahead_us == 0
    assert window(tumbling="1 s").time.max_ahead_us is None


def test_the_kinds_of_windows_read_well() -> None:
    assert str(Sliding(MINUTE, MINUTE)) == "windows of 60000000 us"
    assert str(Sliding(MINUTE, SECOND)) == "windows of 60000000 us every 1000000 us"
    assert str(Session(SECOND)) == "sessions with gaps of 1000000 us"


def test_a_window_leaves_the_grouping_it_was_called_on_alone() -> None:
    rows = grouped("k", "id")
    windowed = rows.window("ts", tumbling="1 s")
    assert rows.windows is None
    assert windowed.keys == ("k", "id")
    assert isinstance(rows.agg(n=hf.count()).node, nodes.RunningAggregate)
    assert isinstance(windowed.agg(n=hf.count()).node, nodes.WindowAggregate)


def test_a_window_aggregate_knows_its_keys_its_aggregates_and_its_window() -> None:
    rows = grouped().window("ts", tumbling="1 s")
    node = rows.agg(n=hf.count(), top=hf.max("id")).node
    assert isinstance(node, nodes.WindowAggregate)
    assert node.upstream is rows.stream.node
    assert (node.keys, node.window) == (("k",), rows.windows)
    assert node.aggregates == (("n", hf.count()), ("top", hf.max("id")))


def test_the_lateness_of_a_dedup_is_its_span() -> None:
    rows = source(hf.Flow("f"))
    node = rows.dedup("id", "k", time="ts", within="1 hour", max_ahead="1 minute").node
    assert isinstance(node, nodes.Dedup)
    assert node.upstream is rows.node
    assert (node.ids, node.within_us) == (("id", "k"), HOUR)
    assert node.time == EventTime("ts", HOUR, MINUTE)


# What is refused.


@pytest.mark.parametrize(
    "kinds",
    [
        {},
        {"tumbling": "1 s", "session": "1 s"},
        {"tumbling": "1 s", "sliding": ("2 s", "1 s")},
        {"sliding": ("2 s", "1 s"), "session": "1 s"},
        {"tumbling": "1 s", "sliding": ("2 s", "1 s"), "session": "1 s"},
    ],
    ids=lambda kinds: "+".join(kinds) or "none",
)
def test_a_window_is_of_exactly_one_kind(kinds: dict[str, Any]) -> None:
    assert refusal(lambda: window(**kinds)) == (
        "window needs exactly one of tumbling=, sliding= and session=",
        'Write .window("ts", tumbling="1 minute", late="10 seconds").',
    )


def test_an_emit_that_is_not_known_is_refused() -> None:
    expected = "emit='sometimes' is not one of final, updates"
    assert refusal(lambda: window(tumbling="1 s", emit="sometimes")) == (expected, None)
    assert refusal(lambda: window(session="1 s", emit="sometimes")) == (expected, None)


def test_sessions_leave_only_when_they_are_final() -> None:
    message, hint = refusal(lambda: window(session="1 s", emit="updates"))
    assert message.startswith('a session window cannot have emit="updates"')
    assert hint == 'Use emit="final".'
    assert window(session="1 s", emit="final").emit == "final"


@pytest.mark.parametrize("sliding", ["10 minutes", ("1 s",), (), ("3 s", "2 s", "1 s"), 5, {"1 s": "2 s"}])
def test_a_sliding_window_is_a_size_and_a_slide(sliding: object) -> None:
    assert refusal(lambda: window(sliding=sliding)) == (
        f"sliding={sliding!r} is not a size and a slide",
        'Write sliding=("10 minutes", "1 minute").',
    )


def test_windows_have_no_gaps_between_them() -> None:
    assert refusal(lambda: window(sliding=("1 s", "2 s"))) == (
        "a slide of 2 s leaves gaps between windows of 1 s",
        None,
    )


def test_a_row_is_in_a_bounded_number_of_windows() -> None:
    most = limits.WINDOWS_PER_ROW_MAX
    assert window(sliding=(f"{most} s", "1 s")).kind == Sliding(most * SECOND, SECOND)
    # The last window that has room for a row may be one that it only just begins.
    for size in (f"{most} s 1 us", f"{most + 1} s"):
        assert refusal(lambda size=size: window(sliding=(size, "1 s"))) == (
            f"every row would be in {most + 1:,} windows, more than {most:,}",
            "Take a longer slide, or tumbling windows and a second aggregate over their results.",
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tumbling": "1 month"}, "tumbling='1 month' is not a duration"),
        ({"tumbling": "0 s"}, "tumbling='0 s' is not a positive duration"),
        ({"session": 5}, "session=5 is not a duration"),
        ({"session": "0 s"}, "session='0 s' is not a positive duration"),
        ({"sliding": ("x", "1 s")}, "sliding size='x' is not a duration"),
        ({"sliding": ("0 s", "1 s")}, "sliding size='0 s' is not a positive duration"),
        ({"sliding": ("1 s", "x")}, "slide='x' is not a duration"),
        ({"sliding": ("1 s", "0 s")}, "slide='0 s' is not a positive duration"),
        ({"tumbling": "1 s", "late": "soon"}, "late='soon' is not a duration"),
        ({"tumbling": "1 s", "late": None}, "late=None is not a duration"),
        ({"session": "1 s", "late": "-1 s"}, "late='-1 s' is not a duration"),
        ({"tumbling": "1 s", "max_ahead": "far"}, "max_ahead='far' is not a duration"),
        ({"session": "1 s", "max_ahead": ""}, "max_ahead='' is not a duration"),
    ],
)
def test_a_bad_duration_is_refused_by_the_name_of_its_argument(arguments: dict[str, Any], named: str) -> None:
    message, hint = refusal(lambda: window(**arguments))
    assert message == named
    assert (hint is not None) == named.endswith("is not a duration")


@pytest.mark.parametrize("name", ["window_start", "window_end"])
def test_the_columns_of_the_window_are_not_named_twice(name: str) -> None:
    keyed = grouped("k", name)
    assert refusal(lambda: keyed.window("ts", tumbling="1 s")) == (
        f"the key {name!r} has the name of a column of the window's output",
        "Rename it in a transform before.",
    )
    windowed = grouped().window("ts", tumbling="1 s")
    assert refusal(lambda: windowed.agg(**{name: hf.count()})) == (
        f"agg({name}=...) has the name of a window column",
        None,
    )
    # Without a window the names are free.
    assert keyed.agg(n=hf.count()).node
    assert grouped().agg(**{name: hf.count()}).node


def test_a_window_does_not_excuse_aggregates_that_are_none() -> None:
    windowed = grouped().window("ts", tumbling="1 s")
    assert refusal(lambda: windowed.agg()) == ("agg needs at least one aggregate, such as n=hf.count()", None)
    assert refusal(lambda: windowed.agg(k=hf.count()))[0] == "agg(k=...) has the name of a key"
    message, hint = refusal(lambda: windowed.agg(n="count"))
    assert message == "agg(n=...) is 'count', not an aggregate"
    assert hint is not None
    assert "hf.count" in hint


def test_a_dedup_needs_ids_and_a_span() -> None:
    rows = source(hf.Flow("f"))
    assert refusal(lambda: rows.dedup(time="ts", within="1 s")) == (
        "dedup needs at least one id column",
        None,
    )
    for within in ("0 s", "a while", None):
        message, _ = refusal(lambda within=within: rows.dedup("id", time="ts", within=within))
        assert message.startswith(f"within={within!r} is not a ")
    message, _ = refusal(lambda: rows.dedup("id", time="ts", within="1 s", max_ahead="-1 s"))
    assert message == "max_ahead='-1 s' is not a duration"


def test_a_description_that_was_refused_leaves_no_trace_in_the_flow() -> None:
    flow = hf.Flow("f")
    rows = source(flow)
    refusal(lambda: rows.dedup("id", time="ts", within="0 s"))
    refusal(lambda: rows.group_by("k").window("ts", tumbling="1 s").agg(window_end=hf.count()))
    refusal(lambda: rows.late_to(hf.discard()))
    assert (flow.stateful, flow.sinks) == ([], [])


@pytest.mark.parametrize("port", ["late", "quarantine"])
@pytest.mark.parametrize(
    "stream",
    [
        lambda rows: rows.transform(lambda df: df),
        lambda rows: rows.union(rows),
        lambda rows: rows.group_by("k").agg(n=hf.count()),
        lambda rows: (
            rows.group_by("k").window("ts", tumbling="1 s").agg(n=hf.count()).transform(lambda df: df)
        ),
    ],
    ids=["transform", "union", "running aggregate", "behind a window"],
)
def test_only_what_judges_event_time_has_side_ports(port: str, stream: Callable[[Stream], Stream]) -> None:
    rows = stream(source(hf.Flow("f")))
    assert refusal(lambda: getattr(rows, f"{port}_to")(hf.discard())) == (
        f"this stream has no port {port!r}: what makes it does not judge event time",
        "Call it right behind a window's agg, a dedup, a join, a substream, or a stateful with time=.",
    )


def test_a_source_judges_no_time_and_sets_nothing_aside_unless_it_is_told_to() -> None:
    rows = source(hf.Flow("f"))
    assert "has no port 'late'" in refusal(lambda: rows.late_to(hf.discard()))[0]
    assert refusal(lambda: rows.quarantine_to(hf.discard())) == (
        "source 'in' sets nothing aside: what it cannot read stops the flow",
        'Give hf.files on_error="quarantine".',
    )


def test_a_quarantine_that_nothing_can_reach_is_refused() -> None:
    flow = hf.Flow("f")
    deduped = source(flow).dedup("id", time="ts", within="1 s")
    message, hint = refusal(lambda: deduped.quarantine_to(hf.discard()))
    assert "there is no max_ahead" in message
    assert "max_ahead=" in str(hint)
    assert flow.sinks == []


def test_an_id_column_named_twice_is_refused() -> None:
    message, _ = refusal(lambda: source(hf.Flow("f")).dedup("id", "id", time="ts", within="1 s"))
    assert message == "dedup names a column twice: id, id"


# Stages, sinks and ports.


def chain(flow: hf.Flow) -> tuple[Stream, Stream, Stream]:
    """A dedup, a window over what it lets through, and a running aggregate over the windows."""
    deduped = source(flow).dedup("id", time="ts", within="1 hour", max_ahead="1 day")
    windowed = deduped.group_by("k").window("ts", tumbling="1 minute", max_ahead="1 day").agg(n=hf.count())
    return deduped, windowed, windowed.group_by("n").agg(windows=hf.count())


def sinks(planned: FlowPlan) -> list[tuple[str, str, str]]:
    return [(sink.name, sink.stage, sink.port) for sink in planned.sinks]


def test_a_chain_is_cut_at_every_stateful_step() -> None:
    flow = hf.Flow("f")
    *_, counted = chain(flow)
    counted.to(hf.discard())
    stages = plan(flow).stages
    assert [stage.name for stage in stages] == ["dedup-1", "aggregate-2", "aggregate-3"]
    assert [type(stage.operator) for stage in stages] == [
        nodes.Dedup,
        nodes.WindowAggregate,
        nodes.RunningAggregate,
    ]
    inputs = [
        Input("source", "in"),
        Input("channel", "dedup-1", "out"),
        Input("channel", "aggregate-2", "out"),
    ]
    assert [stage.prefix for stage in stages] == [Read(origin) for origin in inputs]
    assert [stage.inputs for stage in stages] == [(origin,) for origin in inputs]
    assert [origin.id for origin in inputs] == ["source:in", "channel:dedup-1.out", "channel:aggregate-2.out"]
    assert [plan(flow).readers(stage.name) for stage in stages] == [
        [("stage:aggregate-2", "out")],
        [("stage:aggregate-3", "out")],
        [("sink:aggregate-3-sink-1", "out")],
    ]


def test_a_stage_behind_a_dedup_and_its_source_reads_both() -> None:
    flow = hf.Flow("f")
    rows = source(flow)
    rows.dedup("id", time="ts", within="1 s").named("once").union(rows).to(hf.discard())
    once, both = plan(flow).stages
    assert (once.name, both.name) == ("once", "rows-1")
    assert [origin.id for origin in both.inputs] == ["channel:once.out", "source:in"]


def test_sinks_are_named_after_stage_and_port_and_counted_for_each_port() -> None:
    flow = hf.Flow("f")
    deduped, windowed, _ = chain(flow)
    windowed.named("w").to(hf.discard()).late_to(hf.discard()).to(hf.discard()).late_to(hf.parquet("late/"))
    windowed.quarantine_to(hf.discard())
    deduped.late_to(hf.discard())
    assert sinks(plan(flow)) == [
        ("w-sink-1", "w", "out"),
        ("w-late-1", "w", "late"),
        ("w-sink-2", "w", "out"),
        ("w-late-2", "w", "late"),
        ("w-quarantine-1", "w", "quarantine"),
        ("dedup-1-late-1", "dedup-1", "late"),
    ]
    assert [sink.input.id for sink in plan(flow).sinks][1::4] == ["channel:w.late", "channel:dedup-1.late"]
    assert plan(flow).sinks[3].description == hf.parquet("late/")


def test_a_stage_has_the_side_ports_that_sinks_read_and_no_others() -> None:
    flow = hf.Flow("f")
    deduped, windowed, counted = chain(flow)
    counted.to(hf.discard())
    deduped.quarantine_to(hf.discard()).late_to(hf.discard()).late_to(hf.discard())
    windowed.late_to(hf.discard()).to(hf.discard())
    ports = {stage.name: stage.side_ports for stage in plan(flow).stages}
    assert ports == {"dedup-1": {"late", "quarantine"}, "aggregate-2": {"late"}, "aggregate-3": frozenset()}


def test_readers_of_a_stage_come_with_their_ports() -> None:
    flow = hf.Flow("f")
    deduped, windowed, counted = chain(flow)
    deduped.late_to(hf.discard()).to(hf.discard())
    counted.to(hf.discard())
    windowed.quarantine_to(hf.discard())
    planned = plan(flow)
    assert planned.readers("dedup-1") == [
        ("stage:aggregate-2", "out"),
        ("sink:dedup-1-late-1", "late"),
        ("sink:dedup-1-sink-1", "out"),
    ]
    assert planned.readers("aggregate-2") == [
        ("stage:aggregate-3", "out"),
        ("sink:aggregate-2-quarantine-1", "quarantine"),
    ]
    assert planned.readers("nobody") == []
    for stage in planned.stages:
        assert planned.consumers(stage.name) == [name for name, _ in planned.readers(stage.name)]


def test_a_stage_that_reads_another_twice_is_one_reader() -> None:
    flow = hf.Flow("f")
    deduped, *_ = chain(flow)
    deduped.union(deduped.transform(lambda df: df)).to(hf.discard())
    assert plan(flow).readers("dedup-1") == [("stage:rows-1", "out")]


def test_a_side_port_alone_makes_a_stage() -> None:
    flow = hf.Flow("f")
    _, windowed, _ = chain(flow)
    windowed.late_to(hf.discard())
    planned = plan(flow)
    assert [stage.name for stage in planned.stages] == ["dedup-1", "aggregate-2"]
    assert planned.readers("aggregate-2") == [("sink:aggregate-2-late-1", "late")]


def test_a_given_name_that_a_nameless_stage_would_have_is_refused() -> None:
    flow = hf.Flow("f")
    *_, counted = chain(flow)
    counted.named("dedup-1").to(hf.discard())
    with pytest.raises(hf.PlanError, match="two stages named 'dedup-1'"):
        plan(flow)


def test_rows_are_read_as_they_are_unless_code_of_the_user_stands_between() -> None:
    def as_is(describe: Callable[[Stream, Stream], Stream]) -> tuple[bool, bool]:
        flow = hf.Flow("f")
        describe(source(flow, "a"), source(flow, "b")).dedup("id", time="ts", within="1 s").to(hf.discard())
        (stage,) = plan(flow).stages
        return stage.reads_as_is(Input("source", "a")), stage.reads_as_is(Input("source", "b"))

    def same(df: object) -> object:
        return df

    assert as_is(lambda a, b: a.union(b)) == (True, True)
    assert as_is(lambda a, b: a.transform(same).union(b)) == (False, True)
    assert as_is(lambda a, b: a.union(b).transform(same)) == (False, False)
    assert as_is(lambda a, b: a.union(a.transform(same), b)) == (False, True)
    assert as_is(lambda a, b: a.union(b.transform(same).union(b))) == (True, False)
    assert as_is(lambda a, b: a.transform(same).transform(same).union(b.union(b))) == (False, True)


def test_what_a_stage_before_did_to_the_rows_does_not_count() -> None:
    flow = hf.Flow("f")
    deduped = source(flow).transform(lambda df: df).dedup("id", time="ts", within="1 s")
    deduped.group_by("k").window("ts", session="1 s").agg(n=hf.count()).to(hf.discard())
    first, second = plan(flow).stages
    assert not first.reads_as_is(first.inputs[0])
    assert second.reads_as_is(second.inputs[0])


# Fingerprints.


def window_fingerprint(
    finish: Callable[[Stream], Stream] = lambda stream: stream.to(hf.discard()), **arguments: Any
) -> str:
    flow = hf.Flow("f")
    given = {"tumbling": "1 minute", "late": "10 seconds", "max_ahead": "1 day"} | arguments
    given = {name: value for name, value in given.items() if value is not None}
    time = given.pop("time", "ts")
    finish(source(flow).group_by("k").window(time, **given).agg(n=hf.count()))
    (stage,) = plan(flow).stages
    return stage.fingerprint()


def dedup_fingerprint(
    *ids: str, finish: Callable[[Stream], Stream] = lambda stream: stream.to(hf.discard()), **arguments: Any
) -> str:
    flow = hf.Flow("f")
    finish(
        source(flow).dedup(
            *(ids or ("id",)), **({"time": "ts", "within": "1 hour", "max_ahead": "1 day"} | arguments)
        )
    )
    (stage,) = plan(flow).stages
    return stage.fingerprint()


def test_the_fingerprint_follows_every_part_of_a_window() -> None:
    different = [
        window_fingerprint(),
        window_fingerprint(tumbling="2 minutes"),
        window_fingerprint(tumbling=None, sliding=("1 minute", "30 seconds")),
        window_fingerprint(tumbling=None, sliding=("1 minute", "20 seconds")),
        window_fingerprint(tumbling=None, session="1 minute"),
        window_fingerprint(tumbling=None, session="2 minutes"),
        window_fingerprint(late="11 seconds"),
        window_fingerprint(emit="updates"),
        window_fingerprint(max_ahead="0 seconds"),
        window_fingerprint(max_ahead="1 hour"),
        window_fingerprint(time="id"),
        window_fingerprint(lambda stream: stream.late_to(hf.discard())),
        window_fingerprint(lambda stream: stream.quarantine_to(hf.discard())),
        window_fingerprint(lambda stream: stream.late_to(hf.discard()).quarantine_to(hf.discard())),
    ]
    assert len(set(different)) == len(different)


def test_the_fingerprint_of_a_window_follows_nothing_else() -> None:
    assert {
        window_fingerprint(),
        window_fingerprint(tumbling="60 s", late="10s"),
        window_fingerprint(tumbling=None, sliding=("1 minute", "60 seconds")),
        window_fingerprint(emit="final"),
        window_fingerprint(lambda stream: stream.named("w").to(hf.discard())),
        window_fingerprint(lambda stream: stream.to(hf.parquet("out/")).to(hf.discard())),
    } == {window_fingerprint()}
    late = window_fingerprint(lambda stream: stream.late_to(hf.discard()))
    assert late == window_fingerprint(lambda stream: stream.to(hf.discard()).late_to(hf.parquet("late/")))
    assert late == window_fingerprint(lambda stream: stream.late_to(hf.discard()).late_to(hf.discard()))
    both = window_fingerprint(lambda stream: stream.late_to(hf.discard()).quarantine_to(hf.discard()))
    assert both == window_fingerprint(lambda stream: stream.quarantine_to(hf.discard()).late_to(hf.discard()))


def test_the_fingerprint_does_not_depend_on_the_order_in_which_a_set_is_walked() -> None:
    flow = hf.Flow("f")
    deduped = source(flow).dedup("id", time="ts", within="1 s", max_ahead="1 day")
    deduped.late_to(hf.discard()).quarantine_to(hf.discard())
    (stage,) = plan(flow).stages
    # Another process walks a set of strings in another order; tuples stand for two such sets.
    ports = [("late", "quarantine"), ("quarantine", "late")]
    walked = [replace(stage, side_ports=order) for order in ports]  # type: ignore[arg-type]
    assert {spec.fingerprint() for spec in walked} == {stage.fingerprint()}


def test_the_fingerprint_follows_every_part_of_a_dedup_and_nothing_else() -> None:
    different = [
        dedup_fingerprint(),
        dedup_fingerprint("k"),
        dedup_fingerprint("id", "k"),
        dedup_fingerprint(within="2 hours"),
        dedup_fingerprint(time="k"),
        dedup_fingerprint(max_ahead="1 hour"),
        dedup_fingerprint(finish=lambda stream: stream.late_to(hf.discard())),
        dedup_fingerprint(finish=lambda stream: stream.quarantine_to(hf.discard())),
    ]
    assert len(set(different)) == len(different)
    assert dedup_fingerprint(within="60 minutes", max_ahead="24 hours") == dedup_fingerprint()
    assert (
        dedup_fingerprint(finish=lambda stream: stream.named("d").to(hf.parquet("x"))) == dedup_fingerprint()
    )


def test_a_change_upstream_leaves_the_fingerprints_of_later_stages_alone() -> None:
    def fingerprints(within: str) -> list[str]:
        flow = hf.Flow("f")
        deduped = source(flow).dedup("id", time="ts", within=within)
        deduped.group_by("k").window("ts", tumbling="1 s").agg(n=hf.count()).to(hf.discard())
        return [stage.fingerprint() for stage in plan(flow).stages]

    before, after = fingerprints("1 hour"), fingerprints("2 hours")
    assert before[0] != after[0]
    assert before[1] == after[1]
