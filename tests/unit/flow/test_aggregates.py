"""Aggregates as they are described: what is refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pyspark.sql import functions

import holdfast as hf
from holdfast.flow.explain import explain
from holdfast.flow.habits import FUNCTIONS_INSTEAD
from holdfast.flow.planner import plan


def grouped():
    return hf.Flow("f").source("rows", hf.files("in/", schema="k bigint, v bigint")).group_by("k")


@pytest.mark.parametrize(
    ("aggregate", "hint"),
    [
        (hf.count("distinct v"), r"hf\.count_distinct\('v'\)"),
        (hf.count("DISTINCT k, v"), r"hf\.count_distinct\('k, v'\)"),
        (hf.count(" distinct(v)"), r"hf\.count_distinct\('\(v\)'\)"),
        (hf.sum("distinct v"), r"\.dedup"),
        (hf.avg("Distinct\tv"), r"\.dedup"),
        (hf.max("distinct v"), "Repeats change nothing"),
        (hf.approx_distinct("distinct v"), "count_distinct"),
        (hf.count_distinct("distinct v"), "count_distinct"),
        (hf.first("v", by="distinct k"), "Repeats change nothing"),
        (hf.collect_list("distinct v"), r"hf\.collect_set\('v'\)"),
        (hf.top_k("distinct v", 3), r"\.dedup"),
    ],
)
def test_distinct_in_front_of_an_expression_is_refused_with_what_to_use(
    aggregate: hf.Aggregate, hint: str
) -> None:
    with pytest.raises(hf.PlanError, match=r"agg\(d=hf\.\w+\(.*one epoch at a time") as caught:
        grouped().agg(n=hf.count(), d=aggregate)
    assert caught.match(hint)


def test_columns_whose_names_only_begin_so_are_taken() -> None:
    grouped().agg(a=hf.sum("distinct_v"), b=hf.max("distinct"), c=hf.count("is_distinct"))


@pytest.mark.parametrize("wrong", [lambda: hf.count_distinct(), lambda: hf.count_distinct("v", max=0)])
def test_a_count_of_nothing_is_refused(wrong) -> None:
    with pytest.raises(hf.PlanError, match="count_distinct"):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: hf.collect_list("v", max=0), "max=0 of collect_list"),
        (lambda: hf.collect_set("v", max="9"), "max='9' of collect_set"),
        (lambda: hf.top_k("v", 0), "k=0 of top_k"),
        (lambda: hf.top_k("v", True), "k=True of top_k"),
        (lambda: hf.top_k("v", 10_001), "k=10,001 of top_k is more than 10,000.*collect_list"),
        (lambda: hf.percentile("v", 50), r"p=50 of percentile.*The median is 0\.5"),
        (lambda: hf.percentile("v", "0.5"), r"p='0\.5' of percentile"),
        (lambda: hf.percentile("v", []), r"p=\[\] of percentile"),
        (lambda: hf.percentile("v", [0.5, float("nan")]), r"nan\] of percentile"),
        (lambda: hf.percentile("v", 0.5, error=0), r"error=0 of percentile is not a number from 0\.0001"),
        (lambda: hf.percentile("v", 0.5, error=1), "error=1 of percentile"),
        (lambda: hf.percentile("v", 0.5, max=0), "max=0 of percentile"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_runs(
    wrong: Callable[[], object], told: str
) -> None:
    with pytest.raises(hf.PlanError, match=told):
        wrong()


def test_lists_and_percentiles_are_explained_as_they_are_written() -> None:
    aggregates = {
        "a": hf.collect_list("v"),
        "b": hf.collect_list("v", by="k + 1"),
        "c": hf.collect_set("v"),
        "d": hf.top_k("v", 3, by="k", smallest=True),
        "e": hf.percentile("v", 0.5),
        "f": hf.percentile("v", [0, 0.999], error=0.001),
    }
    stream = grouped().agg(**aggregates).named("s").to(hf.discard())
    (stage,) = explain(plan(stream.flow))["stages"]
    assert stage["operator"]["aggregates"] == {
        "a": "collect_list(v)",
        "b": "collect_list(v, by k + 1)",
        "c": "collect_set(v)",
        "d": "min_by(v, k, 3)",
        "e": "percentile(v, 0.5, error 0.01)",
        "f": "percentile(v, [0, 0.999], error 0.001)",
    }


@pytest.mark.parametrize("name", sorted(FUNCTIONS_INSTEAD))
def test_a_function_of_pyspark_is_told_what_it_is_called_here(name: str) -> None:
    assert hasattr(functions, name) or name in ("approxCountDistinct", "array_agg"), name
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here it is ") as caught:
        getattr(hf, name)
    named = re.findall(r"\bhf\.(\w+)", str(caught.value))
    assert set(named) <= set(hf.__all__)


def test_a_slip_in_a_name_of_the_package_is_told_what_was_meant() -> None:
    with pytest.raises(AttributeError, match="did you mean 'percentile'"):
        _ = hf.percentiles  # type: ignore[attr-defined]
    assert not hasattr(hf, "zzz")
