"""HyperLogLog in SQL and NumPy: about how many different values there are, in 512 bytes a key.

The SQL gives, per key and epoch, the set of (register, rank) pairs as small integers; the merge takes the
largest rank per register. Both are functions of the set of values alone, so order and split do not matter.
The standard error is 1.04 / sqrt(512), which is 4.6%.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

REGISTERS = 512
REGISTERS_TYPE = pa.binary(REGISTERS)

# A pair is register * 64 + rank: ranks go up to 56, and 511 * 64 + 56 fits 16 bits.
_RANKS = 64
_ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)


def partial_sql(expression: str) -> str:
    """The pairs of an epoch. The rank counts trailing zeros: the logarithm of one bit is exact everywhere."""
    h = f"xxhash64({expression})"
    rest = f"shiftrightunsigned({h}, 9)"
    rank = f"if({rest} = 0, 56, cast(round(log2({rest} & -{rest})) as int) + 1)"
    return f"collect_set(if(({expression}) is null, null, cast(({h} & 511) * {_RANKS} + {rank} as smallint)))"


def merge(registers: pa.Array, pairs: pa.Array) -> pa.Array:
    """Registers after an epoch; null registers are empty ones."""
    matrix = _matrix(registers)
    codes = np.asarray(pc.list_flatten(pairs)).astype(np.int64)
    keys = np.asarray(pc.list_parent_indices(pairs))
    np.maximum.at(matrix, (keys, codes // _RANKS), (codes % _RANKS).astype(np.uint8))
    return _registers(matrix)


def union(left: pa.Array, right: pa.Array) -> pa.Array:
    """The registers of both sets of values together."""
    return _registers(np.maximum(_matrix(left), _matrix(right)))


def estimate(registers: pa.Array) -> pa.Array:
    """The number of different values; counts of few values come from the empty registers instead."""
    matrix = _matrix(registers)
    raw = _ALPHA * REGISTERS**2 / np.sum(np.exp2(-matrix.astype(np.float64)), axis=1)
    empty = np.count_nonzero(matrix == 0, axis=1)
    linear = REGISTERS * np.log(REGISTERS / np.maximum(empty, 1))
    few = (raw <= 2.5 * REGISTERS) & (empty > 0)
    return pa.array(np.rint(np.where(few, linear, raw)).astype(np.int64))


def _registers(matrix: np.ndarray) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(REGISTERS_TYPE, len(matrix), [None, pa.py_buffer(matrix)])


def _matrix(registers: pa.Array) -> np.ndarray:
    """One row of registers a key, as bytes that may be written to."""
    filled = pc.fill_null(registers, pa.scalar(bytes(REGISTERS), REGISTERS_TYPE))
    flat = np.frombuffer(filled.buffers()[1], np.uint8)
    start = filled.offset * REGISTERS
    return flat[start : start + len(filled) * REGISTERS].reshape(len(filled), REGISTERS).copy()
