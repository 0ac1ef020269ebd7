"""Registers take the largest rank, in any order; the estimate is within a few standard errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.spark.operators.hyperloglog import REGISTERS, REGISTERS_TYPE, estimate, merge


def pairs(values: int, seed: int) -> pa.Array:
    hashes = np.random.default_rng(seed).integers(0, 2**63, values, dtype=np.uint64)
    rest = hashes >> np.uint64(9)
    lowest = rest & (~rest + np.uint64(1))
    ranks = np.where(rest == 0, 56, np.log2(np.maximum(lowest, 1).astype(np.float64)) + 1)
    codes = np.unique((hashes % 512) * 64 + ranks.astype(np.uint64))
    return pa.array([codes.astype(np.int16)], pa.list_(pa.int16()))


def empty(keys: int = 1) -> pa.Array:
    return pa.nulls(keys, REGISTERS_TYPE)


@pytest.mark.parametrize("values", [1, 10, 1_000, 100_000])
def test_the_estimate_is_near(values: int) -> None:
    found = estimate(merge(empty(), pairs(values, seed=values)))
    assert found[0].as_py() == pytest.approx(values, rel=4 * 1.04 / np.sqrt(REGISTERS))


def test_order_and_repetition_do_not_matter() -> None:
    one, two = pairs(500, 1), pairs(700, 2)
    assert merge(merge(empty(), one), two) == merge(merge(merge(empty(), two), one), two)


def test_keys_do_not_mix() -> None:
    both = pa.concat_arrays([pairs(1_000, 3), pa.array([[]], pa.list_(pa.int16()))])
    found = estimate(merge(empty(2), both))
    assert found[1].as_py() == 0
    assert found[0].as_py() > 800


def test_a_slice_of_registers_is_read_from_its_start() -> None:
    registers = merge(empty(2), pa.concat_arrays([pairs(1_000, 3), pairs(10, 4)]))
    assert estimate(registers.slice(1)) == estimate(registers).slice(1)
