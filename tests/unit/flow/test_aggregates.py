"""Aggregates as they are described: what is refused before anything runs."""

from __future__ import annotations

import pytest

import holdfast as hf


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
