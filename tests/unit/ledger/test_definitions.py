"""What the ledger knows of stages decides whether an edited flow may go on with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.core.errors import StateSchemaError
from holdfast.flow.definition import definition_of
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan
from holdfast.ledger import definitions, holder, schema
from holdfast.ledger.ledger import Ledger
from holdfast.protocols.definitions import Target
from registered import register_stage

Build = Callable[[hf.Flow], None]


def rows(flow: hf.Flow, name: str = "in") -> Stream:
    return flow.source(name, hf.rows(pa.table({"k": [1], "v": [1]})))


def run(
    home: Path, build: Build, *, committed: bool = True, record: bool = True, register: bool = True
) -> list[str]:
    """Register a flow as a run does, without Spark; what its sinks publish to goes by their names' order."""
    made = hf.Flow("f")
    build(made)
    planned = plan(made)
    states = {s.name: s.operator.facts | {"aggregates": ""} if s.operator else None for s in planned.stages}
    found = {stage.name: definition_of(stage, states[stage.name]) for stage in planned.stages}
    targets = {s.name: Target(s.stage, getattr(s.description, "path", s.name)) for s in planned.sinks}
    ledger = Ledger(home)
    generation = holder.take(ledger, "f")
    try:
        with ledger.write(generation) as tx:
            told = definitions.settle(tx, generation, list(found), found, targets)
            if not record:
                tx.execute(sa.delete(schema.definitions))
        for stage in planned.stages if register else ():
            register_stage(ledger, generation, stage.name, states[stage.name], [i.id for i in stage.inputs])
        if committed:
            with ledger.write(generation) as tx:
                tx.execute(sa.update(schema.stages).values(head=3))
        return told
    finally:
        holder.release(ledger, generation)
        ledger.close()


def totals(flow: hf.Flow) -> None:
    rows(flow).group_by("k").agg(s=hf.sum("v")).to(hf.parquet("t"))


def test_the_same_flow_goes_on_and_so_does_one_whose_union_changed_its_order(tmp_path: Path) -> None:
    def union(flow: hf.Flow, *order: int) -> None:
        both = [rows(flow, "a"), rows(flow, "b")]
        both[order[0]].union(both[order[1]]).group_by("k").agg(s=hf.sum("v")).to(hf.parquet("t"))

    assert run(tmp_path, lambda flow: union(flow, 0, 1)) == []
    assert run(tmp_path, lambda flow: union(flow, 1, 0)) == []


def test_a_stage_without_state_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    run(tmp_path, lambda flow: rows(flow).to(hf.parquet("t")) and None)
    with pytest.raises(StateSchemaError, match="reads: source:in -> source:other"):
        run(tmp_path, lambda flow: rows(flow, "other").to(hf.parquet("t")) and None)


def test_the_sides_of_a_join_are_not_exchanged(tmp_path: Path) -> None:
    def joined(flow: hf.Flow, left: int) -> None:
        both = [rows(flow, "a"), rows(flow, "b")]
        pair = {"on": "k", "time": ("v", "v"), "within": ("0 seconds", "1 second")}
        both[left].join(both[1 - left], **pair).named("j").to(hf.discard())  # type: ignore[arg-type]

    run(tmp_path, lambda flow: joined(flow, 0))
    with pytest.raises(StateSchemaError, match="left reads: source:a -> source:b; right reads: source:b"):
        run(tmp_path, lambda flow: joined(flow, 1))


def test_an_aggregate_in_front_of_another_does_not_inherit_its_state(tmp_path: Path) -> None:
    def first(flow: hf.Flow) -> None:
        rows(flow, "other").group_by("k").agg(n=hf.count()).to(hf.parquet("u"))
        totals(flow)

    run(tmp_path, totals)
    with pytest.raises(StateSchemaError, match=r"stage 'aggregate-1'.*reads: source:in -> source:other"):
        run(tmp_path, first)


def test_an_unnamed_stage_that_has_moved_is_asked_for_its_name(tmp_path: Path) -> None:
    def shifted(flow: hf.Flow, name: str | None) -> None:
        stream = rows(flow)
        stream.stateful(lambda r, s, c: (s, r), by=["k"], state="n long", output="k long").to(hf.discard())
        total = stream.group_by("k").agg(s=hf.sum("v"))
        (total.named(name) if name else total).to(hf.parquet("elsewhere"))

    run(tmp_path, totals)
    with pytest.raises(StateSchemaError, match=r"'aggregate-2' is new here.*\.named\('aggregate-1'\)"):
        run(tmp_path, lambda flow: shifted(flow, None))
    assert run(tmp_path, lambda flow: shifted(flow, "aggregate-1")) == []


def test_one_that_took_the_place_of_another_is_told_where_its_state_is(tmp_path: Path) -> None:
    def both(flow: hf.Flow, *names: str) -> None:
        for name in names:
            rows(flow, name).group_by("k").agg(s=hf.sum("v")).to(hf.parquet(name))

    run(tmp_path, lambda flow: both(flow, "a", "b"))
    with pytest.raises(StateSchemaError, match=r"under the name 'aggregate-2'.*\.named\('aggregate-2'\)"):
        run(tmp_path, lambda flow: both(flow, "b"))


def test_a_sink_in_front_of_another_does_not_get_its_target(tmp_path: Path) -> None:
    def sinks(flow: hf.Flow, *targets: str) -> None:
        stream = rows(flow)
        for target in targets:
            stream.transform(lambda df: df).to(hf.parquet(target))

    run(tmp_path, lambda flow: sinks(flow, "a"))
    with pytest.raises(StateSchemaError, match=r"from stage 'rows-1', and would now be from stage 'rows-2'"):
        run(tmp_path, lambda flow: sinks(flow, "b", "a"))
    assert run(tmp_path, lambda flow: sinks(flow, "a", "b")) == []


def test_sinks_of_one_stage_may_come_and_go(tmp_path: Path) -> None:
    def sinks(flow: hf.Flow, *targets: str) -> None:
        stream = rows(flow).transform(lambda df: df)
        for target in targets:
            stream.to(hf.parquet(target))

    run(tmp_path, lambda flow: sinks(flow, "a", "b"))
    assert run(tmp_path, lambda flow: sinks(flow, "b")) == []


def test_a_stage_that_never_committed_may_become_another(tmp_path: Path) -> None:
    run(tmp_path, totals, committed=False)
    assert (
        run(
            tmp_path,
            lambda flow: rows(flow, "b").group_by("v").agg(n=hf.count()).to(hf.parquet("t")) and None,
        )
        == []
    )


def test_a_run_that_ended_before_its_stages_were_registered_is_begun_again(tmp_path: Path) -> None:
    run(tmp_path, totals, committed=False, register=False)
    assert run(tmp_path, totals) == []


def test_a_ledger_without_definitions_is_taken_over_once(tmp_path: Path) -> None:
    def doubled(flow: hf.Flow, total: str = "v * 2") -> None:
        rows(flow).group_by("k").agg(s=hf.sum(total)).to(hf.parquet("t"))

    run(tmp_path, totals, record=False)
    assert run(tmp_path, doubled) == []
    with pytest.raises(StateSchemaError, match=r"aggregate s: sum\(v \* 2\) -> sum\(v\)"):
        run(tmp_path, totals)
