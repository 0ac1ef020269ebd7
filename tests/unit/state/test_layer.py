from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.state.canonical import slot_of
from holdfast.state.layer import LayerInfo, slot_borders, write_layer
from holdfast.state.run import open_run
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, COUNTS, contents, counts, layer, mixed


def test_runs_are_bounded_and_cover_the_tasks_slots(work):
    info = layer(work, "a", counts({k: k for k in range(10_000)}), rows_max=3_000)
    assert [run.path for run in info.runs] == [f"a-{i}.arrow" for i in range(4)]
    assert info.runs[0].slot_lo == 0
    assert info.runs[-1].slot_hi == 4096
    assert all(one.slot_hi == other.slot_lo for one, other in pairwise(info.runs))
    assert all(run.rows < 3_000 for run in info.runs)
    assert info.rows == 10_000
    assert info.bytes == sum(run.bytes for run in info.runs)
    for run in info.runs:
        slot = slot_of(open_run(work, run).h)
        assert run.slot_lo <= slot.min() <= slot.max() < run.slot_hi


def test_rows_of_several_buckets_stay_sorted_within_each_run(work):
    changes = pa.concat_tables([counts({k: k for k in range(500)}, bucket=b) for b in (9, 2, 4)])
    info = layer(work, "a", changes, rows_max=400)
    assert len(info.runs) == 4
    for run in info.runs:
        assert [bucket for bucket, _ in run.buckets] == [2, 4, 9]
        opened = open_run(work, run)
        for bucket in (2, 4, 9):
            start, stop = opened.slice(bucket)
            assert (np.diff(opened.h[start:stop]) > 0).all()
    assert contents(Spine(work, COUNTS, [info], ALL).rows()) == contents(changes)


def test_a_slot_over_the_bound_stays_one_run(work):
    changes = counts({k: k for k in range(100)})
    one_slot = changes.set_column(1, "_h", pa.array(np.arange(100)))
    assert [run.rows for run in layer(work, "a", one_slot, rows_max=10).runs] == [100]


def test_no_rows_make_no_runs(work):
    assert write_layer(work, "a", COUNTS.changes.empty_table(), COUNTS, ALL) == ()
    assert not work.exists()


@pytest.mark.parametrize("cut", [False, True])
def test_a_key_that_occurs_twice_is_refused(work, cut):
    changes = counts({k: k for k in range(1000)}, cut=cut)
    again = counts({500: 1}, cut=cut)
    layer(work, "other-bucket", pa.concat_tables([changes, counts({500: 1}, bucket=1, cut=cut)]))
    with pytest.raises(HoldfastError, match="twice"):
        layer(work, "a", pa.concat_tables([changes, again]))


def test_rows_of_another_tasks_slots_are_refused(work):
    with pytest.raises(HoldfastError, match="slots"):
        layer(work, "a", counts({k: k for k in range(100)}), slots=(0, 2048))


def test_the_same_rows_make_the_same_bytes_whatever_their_order(work):
    changes = counts({k: k for k in range(1000)}, cut=True)
    shuffled = changes.take(pa.array(np.random.default_rng(0).permutation(1000)))
    one, other = layer(work, "a", changes), layer(work, "b", shuffled)
    assert [run.crc32 for run in one.runs] == [run.crc32 for run in other.runs]


def test_what_a_manifest_says_of_a_layer_survives_json(work):
    info = layer(work, "a", counts({1: 1, 2: 2}), epoch=7)
    assert LayerInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_a_state_without_keys_or_without_values_works(work):
    total = StateSchema(pa.schema([]), pa.schema([("n", pa.int64())]))
    row = pa.table([[0], [42], [True], [5]], schema=total.changes)
    spine = Spine(work, total, [layer(work, "a", row, total)], ALL)
    assert spine.lookup(row.select(["_bucket", "_h"])).values["n"].to_pylist() == [5]
    seen = StateSchema(pa.schema([("id", pa.int64())]), pa.schema([]))
    rows = pa.table([[0, 0], np.sort(mixed([1, 2])), [True, True], [1, 2]], schema=seen.changes)
    spine = Spine(work, seen, [layer(work, "b", rows.slice(0, 1), seen)], ALL)
    assert spine.lookup(rows.select(["_bucket", "_h", "id"])).mask.tolist() == [True, False]


def test_borders_cut_rows_evenly_and_never_a_slot():
    assert slot_borders(np.array([5, 5, 5, 5]), 10).tolist() == [0, 2, 4]
    assert slot_borders(np.array([0, 100, 0, 0]), 10).tolist() == [0, 4]
    assert slot_borders(np.array([1, 100, 0, 1]), 60).tolist() == [0, 2, 4]
    assert slot_borders(np.array([100]), 10).tolist() == [0, 1]
    assert slot_borders(np.array([0, 0]), 10).tolist() == [0, 2]
