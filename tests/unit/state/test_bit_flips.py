"""A flipped bit anywhere in a run: a reader says that the file is lost, or what it reads is right."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.core import limits
from holdfast.core.errors import HoldfastError
from holdfast.state.between import Ranges
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.merge import merge_runs
from holdfast.state.run import LostFileError, RunInfo, forget_open_runs, open_run, verify_run
from holdfast.state.schema import StateSchema
from holdfast.state.spine import Spine
from holdfast.storage import checksums

ALL = (0, 4096)
MIXED = StateSchema(
    pa.schema([("at", pa.int64()), ("name", pa.string())]),
    pa.schema(
        [
            ("n", pa.int64()),
            ("on", pa.bool_()),
            ("money", pa.decimal128(21, 2)),
            ("text", pa.string()),
            ("many", pa.list_(pa.int32())),
            ("items", pa.large_list(pa.struct([("t", pa.float64()), ("x", pa.large_string())]))),
        ]
    ),
)
TIMED = StateSchema(pa.schema([("at", pa.int64()), ("no", pa.int64())]), pa.schema([("n", pa.int64())]))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKSUM_BLOCK_BYTES", 256)
    forget_open_runs()


def hash_of(keys: range) -> np.ndarray:
    return (np.array(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def mixed(keys: range, epoch: int) -> pa.Table:
    """Rows of two buckets; every seventh is a tombstone."""
    count = len(keys)
    numbers = np.array(keys, np.int64)
    return pa.table(
        [
            pa.array(numbers % 2),
            pa.array(hash_of(keys)),
            pa.array(numbers % 7 != epoch),
            pa.array(numbers * 3),
            pa.array([None if k % 5 == 0 else f"key-{k}" * (k % 4) for k in keys]),
            pa.array(numbers * 10 + epoch),
            pa.array([None if k % 3 == 0 else k % 2 == 0 for k in keys]),
            pa.array([None if k % 11 == 0 else k for k in keys]).cast(pa.decimal128(21, 2)),
            pa.array([f"text {epoch} of {k}" for k in keys]),
            pa.array([[k, epoch] if k % 2 else None for k in keys], pa.list_(pa.int32())),
            pa.array(
                [[{"t": k / 2, "x": f"item {i}"} for i in range(k % 4)] if k % 9 else None for k in keys],
                MIXED.values.field("items").type,
            ),
        ],
        schema=MIXED.changes,
    ).slice(0, count)


def timed(keys: range) -> pa.Table:
    numbers = np.array(keys, np.int64)
    columns = [
        numbers % 3,
        hash_of(range(len(keys)))[numbers % 20],
        np.ones(len(keys), np.bool_),
        numbers,
        numbers,
        numbers,
    ]
    return pa.table([pa.array(column) for column in columns], schema=TIMED.changes)


def layers(root: Path) -> tuple[list[LayerInfo], list[LayerInfo]]:
    """A spine of three layers, and one for lookups by range."""
    spine = [
        LayerInfo(epoch, epoch, write_layer(root, f"mixed-{epoch}", mixed(keys, epoch), MIXED, ALL, 200))
        for epoch, keys in enumerate([range(300), range(100, 250), range(280, 330)])
    ]
    return spine, [LayerInfo(0, 0, write_layer(root, "timed", timed(range(400)), TIMED, ALL, 150))]


def answers(root: Path, spine: list[LayerInfo], ranged: list[LayerInfo]) -> list[Callable[[], list]]:
    """What is asked: points, all buckets, ranges, all rows, and a merge; over all slots and over some."""
    wanted = mixed(range(0, 340, 3), 9).sort_by([("_bucket", "ascending"), ("_h", "ascending")])
    needles = wanted.select(["_bucket", "_h", "at", "name"])
    by_hash = wanted.sort_by("_h")
    some = (1000, 3000)
    slot = (by_hash["_h"].to_numpy() >> 52) + 2048
    inside = by_hash.filter(pa.array((slot >= some[0]) & (slot < some[1])))

    def everywhere(table: pa.Table, slots: tuple[int, int]) -> list:
        keys = [table[name].combine_chunks() for name in ("at", "name")]
        found = Spine(root, MIXED, spine, slots).lookup_everywhere(table["_h"].to_numpy(), keys)
        return [found.needle.tolist(), found.bucket.tolist(), found.values.to_pylist()]

    def between() -> list:
        h = hash_of(range(20))
        sought = Ranges(h, np.full(20, 100), np.full(20, 250), np.zeros(20, np.int64), np.full(20, 2))
        found = Spine(root, TIMED, ranged, ALL).lookup_between(sought)
        return [found.needle.tolist(), found.bucket.tolist(), found.rows.to_pylist()]

    def lookup() -> list:
        found = Spine(root, MIXED, spine, ALL).lookup(needles)
        return [found.mask.tolist(), found.values.to_pylist()]

    return [
        lookup,
        lambda: everywhere(by_hash, ALL),
        lambda: everywhere(inside, some),
        between,
        lambda: Spine(root, MIXED, spine, ALL).rows().to_pylist(),
        lambda: Spine(root, MIXED, spine, some).rows(1, 1).to_pylist(),
        lambda: [Spine(root, TIMED, ranged, some).count(2)],
        lambda: merge_runs(root, MIXED, spine, ALL, bottom=True, floor=None).to_pylist(),
    ]


def flip(path: Path, bit: int) -> None:
    """In place: a process that has mapped the file sees it."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def flips(infos: list[RunInfo], many: int, seed: int) -> list[tuple[RunInfo, int]]:
    drawn = random.Random(seed)
    return [(info := drawn.choice(infos), drawn.randrange(info.bytes * 8)) for _ in range(many)]


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_no_flipped_bit_gives_a_wrong_row(work: Path, running: bool) -> None:
    """Of 200 flips; where a process runs on, it had read the file before."""
    spine, ranged = layers(work)
    asked = answers(work, spine, ranged)
    right = [ask() for ask in asked]
    infos = [info for layer in (*spine, *ranged) for info in layer.runs]
    found = 0
    for info, bit in flips(infos, 200, seed=5):
        if not running:
            forget_open_runs()
        flip(work / info.path, bit)
        assert not verify_run(work, info)
        for ask, expected in zip(asked, right, strict=True):
            try:
                assert ask() == expected, (info.path, bit)
            except LostFileError as error:
                assert (error.path, "checksum" in error.reason) == (info.path, True)
                found += 1
        flip(work / info.path, bit)
        assert verify_run(work, info)
    assert found > 200
    assert [ask() for ask in asked] == right


def test_without_checksums_the_same_flips_would_give_wrong_rows(work: Path) -> None:
    """Shows that the test above could fail; whole numbers only, so that nothing reads beyond a buffer."""
    with checksums.switched(False):
        _, ranged = layers(work)
        right = Spine(work, TIMED, ranged, ALL).rows()
        wrong = 0
        for info, bit in flips(list(ranged[0].runs), 40, seed=5):
            forget_open_runs()
            flip(work / info.path, bit)
            with suppress(HoldfastError):
                wrong += not Spine(work, TIMED, ranged, ALL).rows().equals(right)
            flip(work / info.path, bit)
    assert wrong > 10


def test_a_lookup_checks_the_blocks_that_it_reads_and_each_once(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spine, _ = layers(work)
    forget_open_runs()
    run = open_run(work, spine[0].runs[0])
    seen: list[int] = []
    wrong = checksums.Table.wrong

    def noted(self: checksums.Table, data: memoryview, blocks: object) -> int | None:
        listed = list(blocks)  # type: ignore[call-overload]
        seen.extend(listed)
        return wrong(self, data, listed)

    monkeypatch.setattr(checksums.Table, "wrong", noted)
    rows = np.array([3, 4])
    run.check_values(rows)
    few = len(seen)
    assert 0 < few < -(-spine[0].runs[0].bytes // 256) / 2
    run.check_values(rows)
    assert len(seen) == few
    run.hashes(0, run.info.rows)
    run.check_slice(0, run.info.rows)
    assert len(seen) == len(set(seen))


def test_a_lookup_of_lists_checks_the_items_of_the_rows_that_it_reads(work: Path) -> None:
    kind = MIXED.values.field("items").type
    schema = StateSchema(pa.schema([("at", pa.int64())]), pa.schema([("items", kind)]))
    keys = range(400)
    items = [[{"t": 1.0, "x": "x" * 40}] * (0 if k % 3 == 0 else 3) for k in keys]
    columns = [np.zeros(400, np.int64), hash_of(keys), np.ones(400, np.bool_), np.array(keys)]
    table = pa.table([*map(pa.array, columns), pa.array(items, kind)], schema=schema.changes)
    (info,) = write_layer(work, "lists", table, schema, ALL)
    run = open_run(work, info)
    assert run.blocks is not None
    opened = int(np.count_nonzero(run.blocks._checked))
    run.check_values(np.array([3, 4, 5]))
    assert 0 < int(np.count_nonzero(run.blocks._checked)) - opened < 12
    (work / info.path).write_bytes(bytes((work / info.path).read_bytes()))
    forget_open_runs()
    last = bytearray((work / info.path).read_bytes())
    last[run.values[0].values.field("x").buffers()[2].address - run.blocks.base + 40] ^= 1
    (work / info.path).write_bytes(last)
    with pytest.raises(LostFileError):
        open_run(work, info).check_slice(0, 400)


def test_a_run_of_an_older_holdfast_is_read_as_before(work: Path) -> None:
    with checksums.switched(False):
        spine, _ = layers(work)
    infos = [info for layer in spine for info in layer.runs]
    assert {info.checksums_at for info in infos} == {0}
    before = {name: value for name, value in infos[0].to_json().items() if name != "checksums_at"}
    assert RunInfo.from_json(before) == infos[0]  # type: ignore[arg-type]
    assert Spine(work, MIXED, spine, ALL).rows().num_rows
    assert all(verify_run(work, info) for info in infos)
    flip(work / infos[0].path, 4000)
    assert not verify_run(work, infos[0])


def as_older(work: Path, info: RunInfo) -> RunInfo:
    """The same run with the table that an older Holdfast gave it: CRC-32 of 32 bits, and no word in front."""
    data = (work / info.path).read_bytes()
    arrow, table = data[: info.checksums_at], checksums.Table.from_bytes(data[info.checksums_at :])
    size = table.block_bytes
    crcs = [zlib.crc32(arrow[at : at + size]) for at in range(0, len(arrow), size)]
    older = struct.pack("<QQQ", size, *table.body) + np.array(crcs, "<u4").tobytes()
    (work / info.path).write_bytes(arrow + older)
    return replace(info, bytes=len(arrow) + len(older), crc32=zlib.crc32(older))


def test_a_table_of_an_older_holdfast_is_checked_by_its_crc32(work: Path) -> None:
    spine, _ = layers(work)
    rows = Spine(work, MIXED, spine, ALL).rows()
    layer = spine[0]
    before = [replace(layer, runs=tuple(as_older(work, info) for info in layer.runs)), *spine[1:]]
    forget_open_runs()
    assert Spine(work, MIXED, before, ALL).rows().equals(rows)
    info = before[0].runs[0]
    assert verify_run(work, info)
    flip(work / info.path, 4000)
    assert not verify_run(work, info)
    with pytest.raises(LostFileError, match="has another checksum"):
        Spine(work, MIXED, before, ALL).rows()
