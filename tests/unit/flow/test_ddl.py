"""Schemas are read without Spark; what is refused says all that is wrong, and what to write."""

from __future__ import annotations

import pytest

from holdfast.core.errors import PlanError
from holdfast.flow.ddl import columns_of


@pytest.mark.parametrize(
    ("ddl", "same"),
    [
        ("a INT", "a int"),
        ("a: long,b  short", "a bigint, b smallint"),
        ("`a-b` string, `c``d` real", "`a-b` string, `c``d` float"),
        ("a dec, b numeric(5), c decimal(38, 2)", "a decimal(10,0), b decimal(5,0), c decimal(38,2)"),
        ("a int not null comment 'one, two', b date -- more\n", "a int, b date"),
        ("a map<string, array<struct<x: int, y: byte>>>", "a map<string,array<struct<x:int,y:tinyint>>>"),
        ("struct<a: int, b: struct<>>", "a int, b struct<>"),
        ("select int, 1a timestamp_ltz", "select int, 1a timestamp"),
        ("a timestamp without time zone, b interval day to second", "a timestamp without time zone, b interval day to second"),
    ],
)  # fmt: skip
def test_columns_and_types_are_told_in_one_spelling(ddl: str, same: str) -> None:
    assert str(columns_of("it", ddl)) == same


@pytest.mark.parametrize(
    ("ddl", "reason", "hint"),
    [
        ("a strng, b datetime", "column 'a' has the type 'strng', which Spark does not have; column 'b' has", "Say string for strng. Say timestamp for datetime."),
        ("a int64", "'int64'", "Say bigint for int64."),
        ("a int,", "it ends where a column should stand", None),
        ("a", "it ends where the type of column 'a' should stand", None),
        ("", "has no columns", None),
        ("a int b int", "'b' stands where a comma or the end should", None),
        ("a-b int", "is no plain name", "back quotes"),
        ("größe int", "'größe' is no plain name", "back quotes"),
        ("a double(3)", "takes no number", None),
        ("a decimal(40,2)", "more than 38 digits", None),
        ("a decimal(2,5)", "more digits behind the point than in all", None),
        ("a array", "array of nothing", "array<int>"),
        ("a map<int>", "map of 1 types", None),
        ("a array<int", "'>' is missing", None),
        (["a int"], "not text", None),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(ddl: str, reason: str, hint: str | None) -> None:
    with pytest.raises(PlanError, match="the schema of it") as caught:
        columns_of("it", ddl)
    assert reason in caught.value.message
    assert (hint or "Spark DDL") in str(caught.value.hint)
