"""What two executions of a plan must agree on: a fingerprint of a table's exact columns.

Invariants:
- It depends on names, types, row count, row order and values; not on chunks, slices, the presence of a
  validity bitmap, what lies under nulls, or dictionary encoding.
- Columns that hold floating point anywhere are left out: their sums may differ in the last bits.
- Injective before hashing: every part is preceded by its length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import StateSchemaError
from holdfast.state.encode import fixed_bytes, is_list, is_text
from holdfast.state.schema import single

_DIGEST_BYTES = 16


def digest(table: pa.Table, columns: Sequence[str] | None = None) -> str:
    """The fingerprint of the exact ones among `columns` (all, unless told), as 32 hex digits."""
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    _add(state, str(table.num_rows).encode())
    for name in table.column_names if columns is None else columns:
        kind = _plain(table.schema.field(name).type)
        if is_exact(kind):
            _add(state, name.encode())
            _add(state, str(kind).encode())
            _add_array(state, single(table.column(name)))
    return state.hexdigest()


def is_exact(kind: pa.DataType) -> bool:
    """Whether a type holds no floating point, however deep."""
    kind = _plain(kind)
    if pa.types.is_nested(kind):
        return all(is_exact(kind.field(number).type) for number in range(kind.num_fields))
    return not pa.types.is_floating(kind)


def _add_array(state: hashlib.blake2b, array: pa.Array) -> None:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _add_array(state, array.storage)
    if pa.types.is_dictionary(kind):
        return _add_array(state, array.dictionary_decode())
    _add_validity(state, array)
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        for child in array.flatten():
            _add_array(state, child)
        return None
    if is_list(kind) or pa.types.is_map(kind):
        return _add_list(state, array)
    if is_text(kind):
        return _add_text(state, array)
    return _add_fixed(state, array)


def _add_validity(state: hashlib.blake2b, array: pa.Array) -> None:
    if pa.types.is_null(array.type) or not array.null_count:
        _add(state, b"")
    else:
        _add(state, np.packbits(array.is_valid().to_numpy(zero_copy_only=False)))


def _add_list(state: hashlib.blake2b, array: pa.Array) -> None:
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    _add_lengths(state, pc.list_value_length(array))
    _add_array(state, array.flatten())


def _add_text(state: hashlib.blake2b, array: pa.Array) -> None:
    # Filling replaces what lies under nulls; a copy is made only where there are nulls.
    array = pc.fill_null(array, "" if "string" in str(array.type) else b"") if array.null_count else array
    _add_lengths(state, pc.binary_length(array))
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return _add(state, b"")
    wide = np.int64 if str(array.type).startswith("large") else np.int32
    ends = np.frombuffer(offsets, wide)[array.offset : array.offset + len(array) + 1]
    return _add(state, memoryview(data)[int(ends[0]) : int(ends[-1])])


def _add_fixed(state: hashlib.blake2b, array: pa.Array) -> None:
    if pa.types.is_boolean(array.type):
        filled = pc.fill_null(array, False) if array.null_count else array
        return _add(state, np.packbits(filled.to_numpy(zero_copy_only=False)))
    try:
        width = array.type.byte_width
    except ValueError as error:
        raise StateSchemaError(f"a column of type {array.type} has no digest", operation="digest") from error
    data = fixed_bytes(array, width)
    if array.null_count:
        data = data.copy()
        data[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return _add(state, data)


def _add_lengths(state: hashlib.blake2b, lengths: pa.Array) -> None:
    filled = pc.fill_null(lengths, 0) if lengths.null_count else lengths
    _add(state, filled.cast(pa.int64()).to_numpy())


def _add(state: hashlib.blake2b, part: bytes | memoryview | npt.NDArray[np.generic]) -> None:
    if isinstance(part, np.ndarray):
        part = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    state.update(len(part).to_bytes(8, "little"))
    state.update(part)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if pa.types.is_dictionary(kind) else kind
