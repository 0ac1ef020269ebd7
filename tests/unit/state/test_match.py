"""Keys are found by value, whatever their types: nulls, NaN and the zeros as in the state."""

from __future__ import annotations

import math

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.match import positions

_values = st.tuples(
    st.none() | st.sampled_from(["", "a", "ä"]),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    st.none() | st.lists(st.none() | st.integers(0, 2), max_size=2),
)
_TYPES = (pa.string(), pa.float64(), pa.list_(pa.int64()))


def columns(rows: list[tuple[object, ...]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(_TYPES)]


def identity(row: tuple[object, ...]) -> str:
    text, number, values = row
    return repr((text, 0.0 if number == 0.0 else number, values))


@given(st.lists(_values, unique_by=identity), st.lists(_values))
def test_every_sought_key_is_found_where_it_is(
    keys: list[tuple[object, ...]], sought: list[tuple[object, ...]]
) -> None:
    places = {identity(key): place for place, key in enumerate(keys)}
    expected = [places.get(identity(key), -1) for key in sought]
    assert positions(columns(keys), columns(sought)).tolist() == expected
