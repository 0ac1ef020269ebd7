"""The spine equals a dictionary, whatever was written, deleted, moved, expired, merged, reopened or re-split.

Checked after every step: `lookup` of every key of the pool in every bucket (found and missing),
`lookup_everywhere` of all keys and of some, `rows` of all buckets and of one, `live_buckets`, and `count`
against what each layer was given. With hashes at full width, cut to their top 8 bits, where some keys
collide, and to 2 bits, where nearly all do. Not checked: concurrency, lost files (unit tests do).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.state.canonical import canonical_order, slot_of
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.merge import merge_ranges, merge_runs
from holdfast.state.run import forget_open_runs, verify_run
from holdfast.state.schema import StateSchema, take_rows
from holdfast.state.spine import Spine

SCHEMA = StateSchema(
    pa.schema([("name", pa.string()), ("id", pa.int64()), ("at", pa.float64())]),
    pa.schema([("total", pa.int64()), ("note", pa.string())]),
)
POOL = list(
    itertools.product([None, "", "a", "ab"], [None, 0, -(2**62)], [None, 0.0, -0.0, math.nan, -math.nan, 1.5])
)
BUCKETS = [0, 1, 7]
SLOTS = 4096

keys = st.sampled_from(POOL)
buckets = st.sampled_from(BUCKETS)
values = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=3))
borders = st.lists(st.integers(1, SLOTS - 1), max_size=3, unique=True).map(lambda b: [0, *sorted(b), SLOTS])


def identity(key):
    """The key as the model knows it: one NaN, one zero."""
    name, number, at = key
    return (name, number, "NaN" if at is not None and math.isnan(at) else None if at is None else at + 0.0)


def hash_of(key, bits):
    digest = hashlib.blake2b(repr(identity(key)).encode(), digest_size=8).digest()
    h = int.from_bytes(digest, "little", signed=True)
    return h & -(1 << (64 - bits))


def ranges(cuts):
    return list(itertools.pairwise(cuts))


class SpineEqualsDict(RuleBasedStateMachine):
    hash_bits = 64

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-spine-"))
        self.layers: list[LayerInfo] = []
        self.model: dict = {}
        self.written: list[dict] = []  # by layer: {(bucket, key): (slot, whether it lives)}
        self.floor = None
        self.cuts = [0, SLOTS]
        self.epoch = 0
        self.files = 0

    def teardown(self):
        forget_open_runs()
        shutil.rmtree(self.root)

    @initialize(cuts=borders)
    def split(self, cuts):
        self.cuts = cuts

    def table(self, rows):
        """A change table of (bucket, key, values or None for a tombstone), in the order given."""
        columns = [
            [bucket for bucket, _, _ in rows],
            [hash_of(key, self.hash_bits) for _, key, _ in rows],
            [value is not None for _, _, value in rows],
            *([key[i] for _, key, _ in rows] for i in range(3)),
            *([value[i] if value else None for _, _, value in rows] for i in range(2)),
        ]
        return pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, SCHEMA.changes, strict=True)], SCHEMA.changes
        )

    def write(self, rows, rows_max):
        """One epoch: each task writes the rows of its slots, several runs where they are many."""
        changes = self.table(rows)
        slot = slot_of(changes["_h"].to_numpy()) if rows else np.zeros(0)
        runs = []
        for lo, hi in ranges(self.cuts):
            self.files += 1
            mine = take_rows(changes, np.flatnonzero((slot >= lo) & (slot < hi)))
            runs += write_layer(self.root, f"layers/{self.files}", mine, SCHEMA, (lo, hi), rows_max)
        self.layers.append(LayerInfo(self.epoch, self.epoch, tuple(runs)))
        self.epoch += 1
        self.written.append(
            {
                (bucket, identity(key)): (slot_of(hash_of(key, self.hash_bits)), value is not None)
                for bucket, key, value in rows
            }
        )
        for bucket, key, value in rows:
            if value is None:
                self.model.pop((bucket, identity(key)), None)
            elif self.floor is None or bucket >= self.floor:
                self.model[bucket, identity(key)] = value

    @rule(
        changes=st.lists(st.tuples(buckets, keys, st.none() | values), max_size=30),
        rows_max=st.integers(1, 40),
    )
    def upsert_and_delete(self, changes, rows_max):
        self.write(list({(b, identity(k)): (b, k, v) for b, k, v in changes}.values()), rows_max)

    @rule(old=buckets, new=buckets, key=keys, value=values)
    def move(self, old, new, key, value):
        self.write([(old, key, None), (new, key, value)] if old != new else [], 10)

    @rule(floor=st.integers(0, 8))
    def drop_buckets(self, floor):
        self.floor = max(floor, self.floor or 0) if self.floor is not None or floor else None
        if self.floor is not None:
            self.model = {place: v for place, v in self.model.items() if place[0] >= self.floor}

    @rule(data=st.data(), rows_max=st.integers(1, 40), drop=st.booleans())
    def merge(self, data, rows_max, drop):
        if not self.layers:
            return
        first = data.draw(st.integers(0, len(self.layers) - 1), "first")
        last = data.draw(st.integers(first, len(self.layers) - 1), "last")
        bottom = first == 0 and data.draw(st.booleans(), "bottom")
        old = self.layers[first : last + 1]
        runs = []
        for slots in merge_ranges(old, rows_max):
            floor = self.floor if drop else None
            merged = merge_runs(self.root, SCHEMA, old, slots, bottom=bottom, floor=floor)
            assert not bottom or all(merged["_live"].to_pylist())
            self.files += 1
            runs += write_layer(self.root, f"merged/{self.files}", merged, SCHEMA, slots, rows_max)
        self.layers[first : last + 1] = [LayerInfo(old[0].first, old[-1].last, tuple(runs))]
        together = {place: row for layer in self.written[first : last + 1] for place, row in layer.items()}
        self.written[first : last + 1] = [
            {
                (bucket, key): (slot, live)
                for (bucket, key), (slot, live) in together.items()
                if (live or not bottom) and (not drop or self.floor is None or bucket >= self.floor)
            }
        ]

    @rule()
    def reopen(self):
        forget_open_runs()
        text = json.dumps([layer.to_json() for layer in self.layers])
        self.layers = [LayerInfo.from_json(data) for data in json.loads(text)]
        assert all(verify_run(self.root, run) for layer in self.layers for run in layer.runs)

    @rule(cuts=borders)
    def resplit(self, cuts):
        self.cuts = cuts

    def spines(self):
        return [Spine(self.root, SCHEMA, self.layers, slots, self.floor) for slots in ranges(self.cuts)]

    @invariant()
    def lookup_agrees(self):
        wanted = [(bucket, key, None) for bucket in BUCKETS for key in POOL]
        needles = self.table(wanted).drop_columns(["_live", "total", "note"])
        slot = slot_of(needles["_h"].to_numpy())
        order = canonical_order(
            needles["_bucket"].to_numpy(), needles["_h"].to_numpy(), [c.chunk(0) for c in needles.columns[2:]]
        )
        bucket = needles["_bucket"].to_numpy()
        # Many buckets at once and one alone take different ways through the search.
        for spine, chosen in itertools.product(self.spines(), [bucket >= 0, bucket == 1]):
            mine = order[((slot >= spine.slots[0]) & (slot < spine.slots[1]) & chosen)[order]]
            found = spine.lookup(take_rows(needles, mine))
            got = zip(found.mask, *(column.to_pylist() for column in found.values.columns), strict=True)
            for row, (there, *value) in zip(mine, got, strict=True):
                expected = self.model.get((wanted[row][0], identity(wanted[row][1])))
                assert there == (expected is not None), wanted[row]
                assert tuple(value) == (expected or (None, None)), wanted[row]

    @invariant()
    def lookup_everywhere_agrees(self):
        # The last of the pool's spellings of a key stands for it: a key is sought once.
        wanted = sorted(
            {identity(key): key for key in POOL}.values(), key=lambda key: hash_of(key, self.hash_bits)
        )
        needles = self.table([(0, key, None) for key in wanted])
        slot = slot_of(needles["_h"].to_numpy())
        for spine, every in itertools.product(self.spines(), [1, 5]):
            mine = np.flatnonzero((slot >= spine.slots[0]) & (slot < spine.slots[1]))[::every]
            sought = take_rows(needles, mine)
            found = spine.lookup_everywhere(
                sought["_h"].to_numpy(), [sought[name].chunk(0) for name in SCHEMA.keys.names]
            )
            got = zip(found.needle, found.bucket, *(c.to_pylist() for c in found.values.columns), strict=True)
            # The list says it all: each needle and bucket once, by needle, then by bucket, with the values.
            assert list(got) == [
                (needle, bucket, *self.model[bucket, identity(wanted[row])])
                for needle, row in enumerate(mine)
                for bucket in BUCKETS
                if (bucket, identity(wanted[row])) in self.model
            ]

    @invariant()
    def count_agrees(self):
        places = [(bucket, slot) for layer in self.written for (bucket, _), (slot, _) in layer.items()]
        low = min(BUCKETS) if self.floor is None else self.floor
        for spine, last in itertools.product(self.spines(), [-1, 0, 6, 7]):
            expected = [
                b for b, slot in places if low <= b <= last and spine.slots[0] <= slot < spine.slots[1]
            ]
            assert spine.count(last) == len(expected)

    @invariant()
    def rows_agree(self):
        for first, last in [(None, None), (1, 1)]:
            tables = [spine.rows(first, last) for spine in self.spines()]
            for table in tables:
                assert table["_live"].to_pylist() == [True] * len(table)
                order = canonical_order(
                    table["_bucket"].to_numpy(),
                    table["_h"].to_numpy(),
                    [c.chunk(0) for c in table.columns[3:6]],
                )
                assert (order == np.arange(len(table))).all()
            got = [
                row for table in tables for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
            ]
            expected = {k: v for k, v in self.model.items() if first is None or first <= k[0] <= last}
            assert len(got) == len(expected)
            assert {(row[0], identity(row[3:6])): row[6:] for row in got} == expected

    @invariant()
    def live_buckets_cover_the_model(self):
        live = {int(bucket) for spine in self.spines() for bucket in spine.live_buckets()}
        assert {bucket for bucket, _ in self.model} <= live
        assert self.floor is None or all(bucket >= self.floor for bucket in live)


class SpineEqualsDictAt8Bits(SpineEqualsDict):
    hash_bits = 8


class SpineEqualsDictAt2Bits(SpineEqualsDict):
    hash_bits = 2


_settings = settings(
    max_examples=settings().max_examples * 3 // 10,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestFullHashes = SpineEqualsDict.TestCase
TestFullHashes.settings = _settings
TestHashesOf8Bits = SpineEqualsDictAt8Bits.TestCase
TestHashesOf8Bits.settings = _settings
TestHashesOf2Bits = SpineEqualsDictAt2Bits.TestCase
TestHashesOf2Bits.settings = _settings
