from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.core.errors import StateSchemaError
from holdfast.state.schema import StateSchema, conform
from unit.state.helpers import COUNTS


def test_change_tables_start_with_the_stores_own_columns():
    assert COUNTS.changes.names == ["_bucket", "_h", "_live", "k", "n"]
    assert COUNTS.needles.names == ["_bucket", "_h", "k"]


@pytest.mark.parametrize(("keys", "values"), [(["_h"], ["n"]), (["k"], ["k"]), (["k", "k"], ["n"])])
def test_a_name_used_twice_is_refused(keys, values):
    with pytest.raises(StateSchemaError, match="named twice"):
        StateSchema(*(pa.schema([(name, pa.int64()) for name in names]) for names in (keys, values)))


def test_agreement_ignores_nullability_but_not_types_or_order():
    def schema(*fields):
        return StateSchema(pa.schema(fields), COUNTS.values)

    k, j = pa.field("k", pa.int64()), pa.field("j", pa.int64())
    assert schema(k).agrees_with(schema(k.with_nullable(False)))
    assert not schema(k).agrees_with(schema(k.with_type(pa.int32())))
    assert not schema(k, j).agrees_with(schema(j, k))


def test_conform_casts_picks_and_joins_chunks():
    given = pa.table({"n": pa.chunked_array([[1], [2]], pa.int32()), "x": ["a", "b"]})
    table = conform(given, COUNTS.values)
    assert table.schema == COUNTS.values
    assert table["n"].num_chunks == 1
    assert table["n"].to_pylist() == [1, 2]


def test_conform_names_what_is_missing_or_does_not_fit():
    with pytest.raises(StateSchemaError, match="missing: n"):
        conform(pa.table({"x": [1]}), COUNTS.values)
    with pytest.raises(StateSchemaError, match="does not fit"):
        conform(pa.table({"n": ["one"]}), COUNTS.values)
