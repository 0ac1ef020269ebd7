"""What a manifest says of the rows that a join still holds back."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

import holdfast as hf
from holdfast.flow.nodes import Join
from holdfast.flow.planner import plan
from holdfast.protocols.epoch_plan import EpochPlan
from holdfast.protocols.watermark import BEGINNING_US
from holdfast.runtime.event_time import event_time_of
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.bind import BoundStage
from holdfast.spark.epoch import Outcome
from holdfast.spark.operators.join_binding import bind_join

SECOND = 1_000_000
COLUMNS = t.StructType([t.StructField("k", t.LongType()), t.StructField("window_end", t.TimestampType())])


def manifest(within: tuple[str, str], how: str, watermark_us: int | None, newest: list[int | None]) -> dict:
    """The event-time part of the first epoch of a join of a stream with itself."""
    flow = hf.Flow("f")
    rows = flow.source("rows", hf.files("in/", schema="k long"))
    joined = rows.join(rows, on="k", time=("window_end", "window_end"), within=within, how=how).to(
        hf.discard()
    )
    (spec,) = plan(flow).stages
    assert isinstance(joined.node, Join)
    operator = bind_join("j", joined.node, (COLUMNS, COLUMNS), 2, frozenset(), 64)
    arrow = arrow_schema("j", operator.output_ddl)
    stage = BoundStage(spec, operator, operator.output_ddl, arrow, (), "", False)
    epoch = EpochPlan({}, 0, (0, 4096), False, "", 0, watermark_us)
    outcome = Outcome([], {}, {}, 0, 0, 0.0, {}, newest, [], {}, [], {})
    return event_time_of(stage, epoch, outcome, {"newest_us": {"source:rows": 3}}, None)


@pytest.mark.parametrize(
    ("within", "how", "behind_us"),
    [
        (("-10 seconds", "10 seconds"), "inner", 10 * SECOND),
        (("-10 seconds", "2 seconds"), "inner", 10 * SECOND),
        (("1 second", "2 seconds"), "inner", 2 * SECOND),
        (("-8 seconds", "-4 seconds"), "inner", 8 * SECOND),
        # A row may wait for the rest of its slice, which is a quarter of the span.
        (("-10 seconds", "10 seconds"), "left", 15 * SECOND - 1),
        (("0 seconds", "8 seconds"), "left", 10 * SECOND - 1),
        (("-8 seconds", "-4 seconds"), "left", 8 * SECOND),
        (("-10 seconds", "10 seconds"), "right", 15 * SECOND - 1),
        (("-8 seconds", "0 seconds"), "right", 10 * SECOND - 1),
        (("4 seconds", "8 seconds"), "right", 8 * SECOND),
        (("-8 seconds", "0 seconds"), "full", 10 * SECOND - 1),
        (("0 seconds", "8 seconds"), "full", 10 * SECOND - 1),
        # Left rows alone leave: the upper bound counts, and for those that wait to the end their slice.
        (("-10 seconds", "2 seconds"), "semi", 2 * SECOND),
        (("-8 seconds", "-4 seconds"), "semi", 0),
        (("-10 seconds", "2 seconds"), "anti", 5 * SECOND - 1),
        (("-8 seconds", "-4 seconds"), "anti", 0),
    ],
)
def test_a_join_may_still_emit_times_as_far_back_as_its_bounds(
    within: tuple[str, str], how: str, behind_us: int
) -> None:
    """Whatever its columns are called: what it emits are no windows, so no time is sharper than another."""
    at = 100 * SECOND
    assert manifest(within, how, at, [None, None])["frontier"] == {
        "any": at - behind_us,
        "end": at - behind_us,
    }


def test_before_there_is_a_watermark_a_join_may_emit_anything() -> None:
    frontier = manifest(("0 s", "1 s"), "inner", None, [None, None])["frontier"]
    assert frontier == {"any": BEGINNING_US, "end": BEGINNING_US}


def test_the_sides_of_a_join_have_clocks_of_their_own() -> None:
    found = manifest(("0 s", "1 s"), "inner", None, [5, 7])
    assert found["newest_us"] == {"source:rows": 5, "right:source:rows": 7}
    assert manifest(("0 s", "1 s"), "inner", None, [None, 1])["newest_us"] == {
        "source:rows": 3,
        "right:source:rows": 1,
    }
