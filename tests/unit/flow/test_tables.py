"""An enrichment is described without Spark: what is no table is answered with what to write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.core.errors import PlanError
from holdfast.flow.explain import explain
from holdfast.flow.flow import Stream
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.interfaces.cli.explain import lines

Step = Callable[[Stream], Stream]
COUNTRIES = hf.files("data/countries/", schema="code string, name string")


def rows(flow: hf.Flow | None = None) -> Stream:
    return (flow or hf.Flow("f")).source("in", hf.files("in/", schema="k long, code string"))


def files(**options: object) -> object:
    return hf.files("countries/", schema="code string", **options)  # type: ignore[arg-type]


WRONG: dict[str, tuple[Step, str]] = {
    "a path": (lambda s: s.enrich("dim/", on="code"), r'not \'dim/\'.*hf.files\("dim/", schema="..."\)'),  # type: ignore[arg-type]
    "a stream": (lambda s: s.enrich(rows(), on="code"), "That is a stream.*join"),  # type: ignore[arg-type]
    "another source": (lambda s: s.enrich(hf.rows([{"a": 1}]), on="a"), "A table is a directory of files"),  # type: ignore[arg-type]
    "a function": (lambda s: s.enrich(print, on="a"), r"hf.files\("),  # type: ignore[arg-type]
    "no key": (lambda s: s.enrich(COUNTRIES, on=[]), r"on=\[\] does not name key columns"),
    "a key twice": (lambda s: s.enrich(COUNTRIES, on=["code", "code"]), "each once"),
    "theirs twice": (lambda s: s.enrich(COUNTRIES, on={"code": "code", "k": "code"}), "each once"),
    "no text": (lambda s: s.enrich(COUNTRIES, on={"code": 1}), "does not name key columns"),  # type: ignore[dict-item]
    "a number": (lambda s: s.enrich(COUNTRIES, on=1), "does not name key columns"),  # type: ignore[arg-type]
    "another join": (lambda s: s.enrich(COUNTRIES, on="code", how="full"), "how='full'.*left.*inner"),
    "no prefix": (lambda s: s.enrich(COUNTRIES, on="code", prefix=None), "prefix=None is not text"),  # type: ignore[arg-type]
    "no duration": (lambda s: s.enrich(COUNTRIES, on="code", refresh="often"), "refresh='often' is not a duration"),
    "quarantine": (lambda s: s.enrich(files(on_error="quarantine"), on="code"), "on_error of hf.files means nothing"),  # type: ignore[arg-type]
    "epochs": (lambda s: s.enrich(files(max_files_per_epoch=1), on="code"), "max_files_per_epoch of"),  # type: ignore[arg-type]
    "no name": (lambda s: s.enrich(hf.files("/", schema="a int"), on="a"), "no name to call the table by.*name="),
    "a bad name": (lambda s: s.enrich(COUNTRIES, on="code", name="a/b"), "'a/b' cannot name a table"),
    "two of a name": (
        lambda s: s.enrich(COUNTRIES, on="code").enrich(hf.files("old/countries", schema="code string"), on="code"),
        "two tables named 'countries'.*name='...'",
    ),
    "two refreshes": (
        lambda s: s.enrich(COUNTRIES, on="code").enrich(COUNTRIES, on="code", refresh=None),
        "another refresh",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("step", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_enrichment_is_refused_where_it_is_said(step: Step, said: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){said}"):
        step(rows())


def planned(step: Step) -> FlowPlan:
    flow = hf.Flow("f")
    step(rows(flow)).group_by("code").agg(n=hf.count()).named("totals").to(hf.discard())
    return plan(flow)


def test_explain_shows_the_step_and_its_table() -> None:
    found = explain(planned(lambda s: s.enrich(COUNTRIES, on="code", how="inner", prefix="c_")))
    said = "enrich with countries (parquet files of data/countries/) on code, inner, columns as c_..."
    assert found["stages"][0]["prefix"]["steps"] == [said]
    assert found["tables"] == [
        {
            "name": "countries",
            "kind": "files",
            "path": "data/countries/",
            "format": "parquet",
            "schema": "code string, name string",
            "refresh": "1 minute",
            "read_by": ["stage:totals"],
        }
    ]
    text = "\n".join(lines(found))
    assert "table countries" in text
    assert said in text


def test_a_stage_is_another_when_its_table_key_or_join_is_but_not_when_it_is_looked_at_more_often() -> None:
    steps: dict[str, Step] = {
        "as it was": lambda s: s.enrich(COUNTRIES, on="code"),
        "another key": lambda s: s.enrich(COUNTRIES, on={"code": "name"}),
        "another join": lambda s: s.enrich(COUNTRIES, on="code", how="inner"),
        "another table": lambda s: s.enrich(hf.files("countries", schema="code string"), on="code"),
        "another prefix": lambda s: s.enrich(COUNTRIES, on="code", prefix="c_"),
    }
    prints = {name: planned(step).stages[0].fingerprint() for name, step in steps.items()}
    assert len(set(prints.values())) == len(steps)
    again = planned(lambda s: s.enrich(COUNTRIES, on="code", refresh=None)).stages[0].fingerprint()
    assert again == prints["as it was"]


def test_tables_that_no_stage_reads_are_none_of_the_flows() -> None:
    flow = hf.Flow("f")
    stream = rows(flow)
    stream.enrich(COUNTRIES, on="code")
    stream.to(hf.discard())
    assert plan(flow).tables == {}
