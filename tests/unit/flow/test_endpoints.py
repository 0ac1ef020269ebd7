"""Descriptions of sinks that could not work are refused where they are written."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.flow.planner import plan


def send(rows: object, epoch: int, token: str) -> None: ...


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("out.db", "not one that SQLAlchemy reads"),
        (
            "mysql://me:secret@host/db",
            r"mysql://me:\*\*\*@host/db is neither a SQLite nor a PostgreSQL database",
        ),
        ("postgresql://me:secret@host", r"postgresql://me:\*\*\*@host does not name a database"),
        ("sqlite://", "does not name a file"),
        ("sqlite:///:memory:", "does not name a file"),
        ("sqlite:///file:out.db?uri=true", "does not name a file"),
        ("sqlite:///out.db?timeout=3", "does not name a file"),
    ],
)
def test_a_url_must_name_a_database_that_is_known(url: str, why: str) -> None:
    with pytest.raises(hf.PlanError, match=why):
        hf.table(url, "t")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_table_needs_a_name(name: str) -> None:
    with pytest.raises(hf.PlanError, match="cannot name a table"):
        hf.table("sqlite:///out.db", name)


POSTGRES = "postgresql://me@host/db"


@pytest.mark.parametrize("url", ["sqlite:///out.db", POSTGRES])
@pytest.mark.parametrize(
    "name", ["holdfast_sinks", "Holdfast_Sinks", "holdfast_staging", "holdfast_key_0123"]
)
def test_a_table_of_holdfasts_own_is_no_sink(url: str, name: str) -> None:
    with pytest.raises(hf.PlanError, match="is Holdfast's own.*another name"):
        hf.table(url, name)


@pytest.mark.parametrize("name", ["public.holdfast_sinks", 'public."holdfast_sinks"', '"holdfast_sinks"'])
def test_nor_is_it_under_its_name_in_full(name: str) -> None:
    with pytest.raises(hf.PlanError, match="is Holdfast's own"):
        hf.table(POSTGRES, name)


@pytest.mark.parametrize("schema", ["holdfast_staging", "holdfast_orders", '"holdfast_orders"'])
def test_schemas_of_ledgers_and_staging_tables_are_no_place_for_a_sink(schema: str) -> None:
    with pytest.raises(hf.PlanError, match="are Holdfast's own.*another schema"):
        hf.table(POSTGRES, f"{schema}.totals")


def test_names_that_only_resemble_ours_are_taken() -> None:
    for name in ("holdfast", "holdfast_totals", "shop.holdfast_totals", '"holdfast_orders.totals"'):
        assert hf.table(POSTGRES, name).table == name
    # SQLite has no schemas: the dot is a part of the name.
    assert hf.table("sqlite:///out.db", "holdfast_orders.totals").table == "holdfast_orders.totals"


def test_the_topic_of_records_is_no_sink() -> None:
    with pytest.raises(hf.PlanError, match="cannot hold rows and their records.*of the rows' own"):
        hf.kafka_sink("host:9092", "holdfast-sinks", records="others")


def test_a_key_is_one_or_several_different_columns() -> None:
    assert hf.table("sqlite:///out.db", "t", key="k").key == ("k",)
    assert hf.table("sqlite:///out.db", "t", key=["k", "l"]).key == ("k", "l")
    assert hf.table("sqlite:///out.db", "t").key is None
    for key in ([], ["k", "K"]):
        with pytest.raises(hf.PlanError, match="not a list of different columns"):
            hf.table("sqlite:///out.db", "t", key=key)


def test_a_password_is_not_shown_by_a_description() -> None:
    assert "sqlite" not in repr(hf.table("sqlite:///out.db", "t"))
    assert "secret" not in repr(hf.table("postgresql://me:secret@host/db", "t"))


def test_foreach_needs_a_function_of_three() -> None:
    hf.foreach(send)
    hf.foreach(lambda *call: None)
    hf.foreach(print)
    with pytest.raises(hf.PlanError, match="needs a function"):
        hf.foreach("send")
    with pytest.raises(hf.PlanError, match="cannot be called with rows, epoch and token"):
        hf.foreach(lambda rows, epoch: None)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_most_once"])
def test_what_a_function_cannot_hold_is_refused_with_the_ways_out(guarantee: str) -> None:
    def planned(guarantee: str, idempotent: bool) -> None:
        flow = hf.Flow("f", guarantee=guarantee)
        rows = flow.source("in", hf.files("in/", schema="k long")).named("rows")
        plan_of = rows.to(hf.foreach(send, idempotent=idempotent)).flow
        plan(plan_of)

    with pytest.raises(hf.PlanError, match="cannot hold for sink 'rows-sink-1'") as caught:
        planned(guarantee, idempotent=False)
    assert caught.value.stage == "rows"
    for way in ("idempotent=True", "at_least_once", "hf.table"):
        assert way in str(caught.value.hint)
    planned(guarantee, idempotent=True)
    planned("at_least_once", idempotent=False)
