from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.state.canonical import ascends_in_order
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.merge import merge_ranges, merge_runs
from holdfast.state.run import RunInfo
from holdfast.state.spine import Spine
from unit.state.helpers import ALL, COUNTS, contents, counts, layer


@pytest.fixture(params=[False, True], ids=["full hash", "colliding hash"])
def layers(request, work):
    cut = request.param
    tables = [
        pa.concat_tables([counts({1: 10, 2: 20}, bucket=0, cut=cut), counts({1: 15}, bucket=5, cut=cut)]),
        counts({1: 11, 3: 31}, cut=cut),
        pa.concat_tables([counts({2: None, 9: None}, cut=cut, live=False), counts({4: 42}, cut=cut)]),
    ]
    return [layer(work, str(epoch), table, epoch=epoch) for epoch, table in enumerate(tables)]


def merged(work, layers, **options):
    table = merge_runs(work, COUNTS, layers, ALL, **{"bottom": False, "floor": None} | options)
    assert table.schema == COUNTS.changes
    assert ascends_in_order(table["_bucket"].to_numpy(), table["_h"].to_numpy())
    live = table["_live"].to_pylist()
    return {
        place: n if alive else "dead" for (place, n), alive in zip(contents(table).items(), live, strict=True)
    }


def test_the_newest_row_wins_and_tombstones_stay_above_the_bottom(work, layers):
    expected = {(0, 1): 11, (0, 2): "dead", (0, 3): 31, (0, 4): 42, (0, 9): "dead", (5, 1): 15}
    assert merged(work, layers) == expected


def test_tombstones_go_at_the_bottom(work, layers):
    assert merged(work, layers, bottom=True) == {(0, 1): 11, (0, 3): 31, (0, 4): 42, (5, 1): 15}


def test_rows_below_the_floor_go(work, layers):
    assert merged(work, layers, floor=1) == {(5, 1): 15}


def test_a_tombstone_above_the_floor_stays_while_an_older_layer_holds_its_row(work):
    older = layer(work, "older", counts({1: 10}, bucket=5))
    newer = [
        layer(work, "1", counts({2: 20}, bucket=0), epoch=1),
        layer(work, "2", counts({1: None}, bucket=5, live=False), epoch=2),
    ]
    assert merged(work, newer, floor=5) == {(5, 1): "dead"}
    table = merge_runs(work, COUNTS, newer, ALL, bottom=False, floor=5)
    spine = Spine(work, COUNTS, [older, layer(work, "merged", table, epoch=2)], ALL, floor=5)
    assert contents(spine.rows()) == {}


def test_one_layer_and_no_rows_merge_too(work, layers):
    assert merged(work, layers[:1]) == {(0, 1): 10, (0, 2): 20, (5, 1): 15}
    assert merged(work, []) == {}
    assert merge_ranges([], 10) == []
    assert merge_ranges([LayerInfo(0, 0, ())], 10) == []


def test_ranges_put_together_hold_what_one_merge_holds(work):
    layers = [
        layer(work, str(e), counts(dict.fromkeys(range(e, 3000, e + 1), e)), rows_max=900) for e in range(4)
    ]
    ranges = merge_ranges(layers, 1000)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 4096
    parts = [merge_runs(work, COUNTS, layers, slots, bottom=True, floor=None) for slots in ranges]
    assert all(part.num_rows < 1100 for part in parts)
    assert contents(pa.concat_tables(parts)) == merged(work, layers)
    for number, (part, slots) in enumerate(zip(parts, ranges, strict=True)):
        assert len(write_layer(work, f"m{number}", part, COUNTS, slots, 2000)) == 1


def test_ranges_follow_where_the_rows_are():
    def info(rows, lo, hi):
        return RunInfo("x", rows, 0, 0, lo, hi, (), 0)

    dense = LayerInfo(0, 0, (info(900, 100, 110), info(100, 200, 300)))
    ranges = merge_ranges([dense], 100)
    assert ranges[0][0] == 100
    assert ranges[-1][1] == 300
    assert sum(hi <= 110 for _, hi in ranges) >= 8
