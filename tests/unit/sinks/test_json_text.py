"""JSON that Arrow's kernels write is what a reader of JSON takes for the same values."""

from __future__ import annotations

import base64
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sinks.json_text import as_json, can_write, rows_as_json

texts = st.one_of(st.none(), st.text())
numbers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


def read(array: pa.Array) -> list[object]:
    return [json.loads(text) for text in as_json(array).to_pylist()]


@given(st.lists(texts))
def test_strings_come_back(values: list[str | None]) -> None:
    assert read(pa.array(values, pa.string())) == values


@given(st.lists(st.one_of(st.none(), st.binary(max_size=10))), st.integers(0, 3))
def test_bytes_are_base64_of_slices_too(values: list[bytes | None], cut: int) -> None:
    wanted = [None if value is None else base64.b64encode(value).decode() for value in values[cut:]]
    assert read(pa.array(values, pa.binary()).slice(cut)) == wanted


@given(st.lists(st.one_of(st.none(), st.floats())))
def test_doubles_are_the_same_doubles(values: list[float | None]) -> None:
    for value, found in zip(values, read(pa.array(values, pa.float64())), strict=True):
        if value is None or math.isfinite(value):
            assert repr(found) == repr(value)
        else:
            assert found == ("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")


@given(st.lists(st.one_of(st.none(), st.lists(texts, max_size=3))), st.integers(0, 3))
def test_lists_of_slices_come_back(values: list[list[str | None] | None], cut: int) -> None:
    assert read(pa.array(values, pa.list_(pa.string())).slice(cut)) == values[cut:]
    assert read(pa.array(values, pa.large_list(pa.string())).slice(cut)) == values[cut:]


@given(
    st.lists(st.one_of(st.none(), st.dictionaries(st.text(), st.lists(numbers, max_size=2), max_size=3))),
    st.integers(0, 3),
)
def test_maps_of_slices_come_back(values: list[dict[str, list[int | None]] | None], cut: int) -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.int64()))
    pairs = [None if value is None else list(value.items()) for value in values]
    assert read(pa.array(pairs, kind).slice(cut)) == values[cut:]


@given(
    st.lists(st.one_of(st.none(), st.fixed_dictionaries({'a "b"': numbers, "c": texts}))), st.integers(0, 3)
)
def test_structs_of_slices_come_back(values: list[dict[str, object] | None], cut: int) -> None:
    kind = pa.struct([('a "b"', pa.int64()), ("c", pa.string())])
    assert read(pa.array(values, kind).slice(cut)) == values[cut:]


def test_keys_of_a_map_that_are_no_text_become_text() -> None:
    assert read(pa.array([[(1, "x")]], pa.map_(pa.int32(), pa.string()))) == [{"1": "x"}]


def test_rows_are_objects_also_without_columns() -> None:
    batch = pa.record_batch({"n": [1, None], "none": pa.nulls(2)})
    assert [json.loads(row) for row in rows_as_json(batch).to_pylist()] == [
        {"n": 1, "none": None},
        {"n": None, "none": None},
    ]
    assert rows_as_json(batch.select([])).to_pylist() == ["{}", "{}"]


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.list_(pa.duration("us")), pa.month_day_nano_interval()]
)
def test_intervals_have_no_form_in_json(kind: pa.DataType) -> None:
    assert not can_write(kind)
