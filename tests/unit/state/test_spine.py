from __future__ import annotations

from datetime import date
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core.errors import HoldfastError, StateSchemaError
from holdfast.state import search
from holdfast.state.layer import LayerInfo
from holdfast.state.run import LostFileError, forget_open_runs
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, COUNTS, contents, counts, hash_of, layer, needles_of

NAN = float("nan")


@pytest.fixture(autouse=True)
def fresh_cache():
    forget_open_runs()


def looked_up(spine, keys, bucket=0, cut=False):
    """{key: n} of the keys that were found."""
    needles = needles_of(counts(dict.fromkeys(keys, 0), bucket, cut))
    found = spine.lookup(needles)
    pairs = zip(needles["k"].to_pylist(), found.mask, found.values["n"].to_pylist(), strict=True)
    return {k: n for k, there, n in pairs if there}


def test_the_newest_layer_wins_and_tombstones_hide(work):
    layers = [
        layer(work, "0", counts({1: 10, 2: 20, 3: 30})),
        layer(work, "1", counts({2: 21})),
        layer(work, "2", counts({3: None}, live=False)),
    ]
    spine = Spine(work, COUNTS, layers, ALL)
    assert looked_up(spine, [1, 2, 3, 4]) == {1: 10, 2: 21}
    assert contents(spine.rows()) == {(0, 1): 10, (0, 2): 21}
    again = Spine(work, COUNTS, [*layers, layer(work, "3", counts({3: 33}))], ALL)
    assert looked_up(again, [3]) == {3: 33}


def test_a_null_value_is_found_and_is_not_a_tombstone(work):
    spine = Spine(work, COUNTS, [layer(work, "0", counts({1: None}))], ALL)
    assert looked_up(spine, [1]) == {1: None}


@pytest.mark.parametrize("cut", [False, True], ids=["full hash", "colliding hash"])
@pytest.mark.parametrize("needles_per_row", [0, 4, 10**9], ids=["by row", "mixed", "by bloom"])
def test_many_keys_over_many_layers_equal_a_dictionary(work, cut, needles_per_row, monkeypatch):
    monkeypatch.setattr(search, "_NEEDLES_PER_ROW_MAX", needles_per_row)
    rng = np.random.default_rng(5)
    layers, model = [], {}
    for epoch in range(6):
        chosen = [int(k) for k in rng.choice(4000, 1500 >> epoch, replace=False)]
        dead = set(chosen[: len(chosen) // 5])
        live = {k: k * 10 + epoch for k in chosen if k not in dead}
        changes = [counts(live, cut=cut), counts(dict.fromkeys(dead), cut=cut, live=False)]
        layers.append(layer(work, f"{epoch}", pa.concat_tables(changes), epoch=epoch, rows_max=500))
        model = {k: n for k, n in model.items() if k not in dead} | live
    spine = Spine(work, COUNTS, layers, ALL)
    assert looked_up(spine, range(5000), cut=cut) == model
    assert contents(spine.rows()) == {(0, k): n for k, n in model.items()}


@pytest.mark.parametrize("needles_per_span", [0, 10**9], ids=["bucket by bucket", "all at once"])
def test_many_buckets_equal_a_dictionary(work, needles_per_span, monkeypatch):
    monkeypatch.setattr(search, "_NEEDLES_PER_SPAN_MIN", needles_per_span)
    tables = [counts({k: k + b for k in range(b % 7, 90, 3)}, bucket=b, cut=True) for b in range(20)]
    layers = [
        layer(work, "0", pa.concat_tables(tables[::2]), rows_max=100),
        layer(work, "1", pa.concat_tables(tables[1::2])),
    ]
    spine = Spine(work, COUNTS, layers, ALL, floor=3)
    wanted = pa.concat_tables([counts(dict.fromkeys(range(100), 0), b, cut=True) for b in range(22)])
    needles = needles_of(wanted)
    found = spine.lookup(needles)
    got = contents(needles.append_column("n", found.values["n"]).filter(pa.array(found.mask)))
    model = {place: n for place, n in contents(pa.concat_tables(tables)).items() if place[0] >= 3}
    assert got == model == contents(spine.rows())
    assert spine.live_buckets().tolist() == list(range(3, 20))


def test_rows_below_the_floor_do_not_exist(work):
    changes = pa.concat_tables([counts({1: b}, bucket=b) for b in (-1, 0, 5)])
    spine = Spine(work, COUNTS, [layer(work, "0", changes)], ALL, floor=0)
    assert [looked_up(spine, [1], bucket=b) for b in (-1, 0, 5)] == [{}, {1: 0}, {1: 5}]
    assert contents(spine.rows()) == {(0, 1): 0, (5, 1): 5}
    assert contents(spine.rows(-10, 0)) == {(0, 1): 0}
    assert spine.live_buckets().tolist() == [0, 5]


def test_rows_reads_only_the_buckets_asked_for(work):
    changes = pa.concat_tables([counts(dict.fromkeys(range(100), b), bucket=b) for b in range(5)])
    spine = Spine(work, COUNTS, [layer(work, "0", changes), layer(work, "1", counts({1: 1}, bucket=9))], ALL)
    assert contents(spine.rows(2, 3)) == {(b, k): b for b in (2, 3) for k in range(100)}
    assert spine.rows_examined == 200
    assert spine.runs_opened == 1


def test_a_lookup_compares_only_rows_it_seeks(work):
    layers = [layer(work, "0", counts({k: k for k in range(50_000)}), rows_max=10_000)]
    layers += [layer(work, str(e), counts({k: -k for k in range(e * 1000, e * 1000 + 1000)})) for e in (1, 2)]
    spine = Spine(work, COUNTS, layers, ALL)
    assert looked_up(spine, [7, 1500, 2500, 10**6]) == {7: 7, 1500: -1500, 2500: -2500}
    assert spine.rows_examined == 3
    assert spine.runs_skipped_by_bloom == 0
    assert spine.runs_opened <= 4


def test_a_lookup_of_a_key_that_is_nowhere_compares_nothing(work):
    layers = [layer(work, "0", counts({k: k for k in range(50_000)}), rows_max=10_000)]
    layers += [layer(work, "1", counts({5: 5})), layer(work, "2", counts({10**6: 1}, bucket=4))]
    spine = Spine(work, COUNTS, layers, ALL)
    assert looked_up(spine, [10**6]) == {}
    assert spine.rows_examined == 0
    # One run of the large layer has the slot, the small layer has all slots, the third another bucket.
    assert spine.runs_opened == spine.runs_skipped_by_bloom == 2


def test_a_layer_decides_before_older_ones_are_opened(work):
    old, new = layer(work, "0", counts({1: 1})), layer(work, "1", counts({1: 2}))
    (work / old.runs[0].path).unlink()
    spine = Spine(work, COUNTS, [old, new], ALL)
    assert looked_up(spine, [1]) == {1: 2}
    assert spine.runs_opened == 1
    with pytest.raises(LostFileError, match=r"lost file: 0-0\.arrow"):
        looked_up(spine, [2])


def test_other_splits_read_the_same_files(work):
    info = layer(work, "0", counts({k: k for k in range(3000)}), rows_max=700)
    for borders in ([0, 4096], [0, 1, 1000, 1001, 4096], list(range(0, 4097, 512))):
        spines = [Spine(work, COUNTS, [info], s) for s in pairwise(borders)]
        assert contents(pa.concat_tables([spine.rows() for spine in spines])) == contents(
            counts({k: k for k in range(3000)})
        )
        assert sum(spine.rows().num_rows for spine in spines) == 3000


def test_runs_of_other_slots_are_not_opened(work):
    info = layer(work, "0", counts({k: k for k in range(3000)}), rows_max=700)
    spine = Spine(work, COUNTS, [info], (0, 10))
    spine.rows()
    assert spine.runs_opened == 1


def test_needles_may_repeat_and_may_be_none(work):
    spine = Spine(work, COUNTS, [layer(work, "0", counts({1: 1, 2: 2}, cut=True))], ALL)
    needles = needles_of(counts({1: 0, 2: 0, 3: 0}, cut=True))
    twice = needles.take(pa.array([0, 0, 1, 1, 2, 2]))
    found = spine.lookup(twice)
    expected = [k if k < 3 else None for k in twice["k"].to_pylist()]
    assert found.values["n"].to_pylist() == expected
    nothing = spine.lookup(needles.slice(0, 0))
    assert (len(nothing.mask), nothing.values.num_rows) == (0, 0)
    chunkless = pa.table([pa.chunked_array([], f.type) for f in COUNTS.needles], schema=COUNTS.needles)
    assert spine.lookup(chunkless).values.schema == COUNTS.values


def test_an_empty_spine_has_nothing(work):
    for layers in ([], [LayerInfo(0, 3, ())]):
        spine = Spine(work, COUNTS, layers, ALL, floor=3)
        assert looked_up(spine, [1, 2]) == {}
        assert spine.rows().schema == COUNTS.changes
        assert spine.rows().num_rows == 0
        assert spine.live_buckets().size == 0


def test_needles_in_no_order_or_of_other_slots_are_refused(work):
    needles = needles_of(counts(dict.fromkeys(range(100), 0)))
    spine = Spine(work, COUNTS, [], ALL)
    with pytest.raises(HoldfastError, match="not sorted"):
        spine.lookup(needles.take(pa.array(np.arange(100)[::-1])))
    with pytest.raises(HoldfastError, match="slots"):
        Spine(work, COUNTS, [], (0, 100)).lookup(needles)


def test_state_of_another_schema_is_refused(work):
    info = layer(work, "0", counts({1: 1}))
    other = StateSchema(COUNTS.keys, pa.schema([("n", pa.float64())]))
    with pytest.raises(StateSchemaError, match="other names or types"):
        Spine(work, other, [info], ALL).rows()


@pytest.mark.parametrize("cut", [False, True], ids=["full hash", "colliding hash"])
@pytest.mark.parametrize(
    ("kind", "stored", "sought"),
    [
        (pa.string(), [None, "", "a", "ab"], [None, "", "a", "ab", "b"]),
        (pa.float64(), [None, -0.0, NAN, 1.5], [None, 0.0, -NAN, 1.5, 2.5]),
        (pa.bool_(), [None, True], [None, True, False]),
        (pa.decimal128(12, 2), [Decimal("1.10"), None], [Decimal("1.10"), None, Decimal("1.11")]),
        (pa.date32(), [date(2024, 1, 1)], [date(2024, 1, 1), date(2024, 1, 2), None]),
        (pa.list_(pa.string()), [[], None, ["a", None]], [[], None, ["a", None], ["a"], [None, "a"]]),
        (
            pa.struct([("x", pa.float32()), ("y", pa.list_(pa.int8()))]),
            [{"x": -0.0, "y": []}, None, {"x": None, "y": None}],
            [{"x": 0.0, "y": []}, None, {"x": None, "y": None}, {"x": None, "y": []}],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_keys_of_any_type_are_found(work, kind, stored, sought, cut):
    schema = StateSchema(pa.schema([("key", kind)]), pa.schema([("v", kind)]))

    def hashes(keys):
        # What is one key must have one hash, as Spark sees to.
        h = np.array([hash_of(str(key).replace("-0.0", "0.0")) for key in keys])
        return h & -(1 << 56) if cut else h

    keys = pa.array(stored, kind)
    rows = [np.zeros(len(keys), np.int64), hashes(stored), np.ones(len(keys), bool), keys, keys]
    spine = Spine(work, schema, [layer(work, "0", pa.table(rows, schema=schema.changes), schema)], ALL)
    wanted = pa.array(sought, kind)
    needles = needles_of(
        pa.table([np.zeros(len(wanted), np.int64), hashes(sought), wanted], schema=schema.needles), schema
    )
    found = spine.lookup(needles)
    hit = {str(k).replace("-0.0", "0.0") for k in stored}
    asked = [str(k).replace("-0.0", "0.0") for k in needles["key"].to_pylist()]
    assert found.mask.tolist() == [k in hit for k in asked]
    got = [str(v).replace("-0.0", "0.0") for v in found.values["v"].to_pylist()]
    assert got == [k if k in hit else "None" for k in asked]
