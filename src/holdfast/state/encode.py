"""Nested keys as bytes, so that they can be compared and sorted like strings.

Invariants:
- Injective: two values have the same bytes exactly if they are the same key (null is null, NaN is NaN,
  -0.0 is 0.0). Every encoding delimits itself, so that encodings can be put one after the other.
- Bytes that lie under nulls never show.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import StateSchemaError

_EMPTY = pa.scalar(b"", pa.large_binary())


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is one of the lists whose rows are ranges of a child array."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is a string or bytes of varying length."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def encode(array: pa.Array) -> pa.Array:
    """One large_binary without nulls per row; the first byte says whether the row is valid."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [encode(child) for child in array.flatten()]
        return pc.binary_join_element_wise(_fixed(_valid(array)[:, None]), *parts, _EMPTY)
    if is_list(kind):
        return _encode_list(array)
    if is_text(kind):
        lengths = _lengths(pc.binary_length(array))
        text = pc.fill_null(array.cast(_binary_of(kind)).cast(pa.large_binary()), b"")
        return pc.binary_join_element_wise(_header(array, lengths), text, _EMPTY)
    return _encode_fixed(array)


def normalised(array: pa.Array) -> pa.Array:
    """Floats with one zero and one NaN, so that equal keys have equal bits; nulls stay nulls."""
    values = array.to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0.0)
    values[np.isnan(values)] = np.nan
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, type=array.type, mask=mask, from_pandas=False)


def fixed_bytes(array: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """The values of a fixed-width array as a matrix of bytes, one row each (garbage under nulls)."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros((len(array), width), np.uint8)
    flat = np.frombuffer(data, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    return flat.reshape(len(array), width)


def _encode_list(array: pa.Array) -> pa.Array:
    lengths = _lengths(pc.list_value_length(array))
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    children = pa.LargeListArray.from_arrays(offsets, encode(array.flatten()))
    return pc.binary_join_element_wise(_header(array, lengths), pc.binary_join(children, _EMPTY), _EMPTY)


def _encode_fixed(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif pa.types.is_floating(kind):
        array = normalised(array)
    try:
        width = array.type.byte_width
    except ValueError as error:
        raise StateSchemaError(
            f"a key cannot hold a column of type {kind}",
            operation="encode key",
            hint="Use numbers, strings, bytes, dates, timestamps, and lists or structs of them.",
        ) from error
    valid = _valid(array)
    return _fixed(np.hstack([valid[:, None], fixed_bytes(array, width) * valid[:, None]]))


def _valid(array: pa.Array) -> npt.NDArray[np.uint8]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid.view(np.uint8)


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    filled: npt.NDArray[np.int64] = pc.fill_null(lengths.cast(pa.int64()), 0).to_numpy()
    return filled


def _header(array: pa.Array, lengths: npt.NDArray[np.int64]) -> pa.Array:
    sizes = np.ascontiguousarray(lengths).view(np.uint8).reshape(len(lengths), 8)
    return _fixed(np.hstack([_valid(array)[:, None], sizes]))


def _fixed(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    data = np.ascontiguousarray(matrix)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _binary_of(kind: pa.DataType) -> pa.DataType:
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return pa.large_binary() if large else pa.binary()
