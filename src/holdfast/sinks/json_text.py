"""JSON from Arrow arrays, by Arrow's kernels: every value becomes text, and rows are joined from the texts of their columns.

As Spark's `to_json` writes it: times as ISO 8601, a `timestamp` in UTC, decimals as numbers with all their digits,
binary as Base64, and NaN and the infinities as text. A null is written as `null`, not left out.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROLS = [(chr(code), _SHORT.get(chr(code), f"\\u{code:04x}")) for code in range(0x20)]


def can_write(kind: pa.DataType) -> bool:
    """Whether values of a type have a form in JSON."""
    if kinds.is_struct(kind):
        return all(can_write(kind.field(i).type) for i in range(kind.num_fields))
    if kinds.is_map(kind):
        return can_write(kind.key_type) and not kinds.is_nested(kind.key_type) and can_write(kind.item_type)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return can_write(kind.value_type)
    plain = (
        kinds.is_null, kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_date,
        kinds.is_timestamp, kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary,
    )  # fmt: skip
    return any(fits(kind) for fits in plain)


def rows_as_json(batch: pa.RecordBatch) -> pa.Array:
    """The rows of a batch, an object each."""
    if batch.num_columns == 0:
        return _all("{}", batch.num_rows)
    return _object(batch.schema.names, batch.columns)


def as_json(array: pa.Array) -> pa.Array:
    """The values of an array as text, null as `null`."""
    text = _text(array)
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, "null")


def _text(array: pa.Array) -> pa.Array:
    """The texts of an array; what stands where it has nulls does not matter, but is not null."""
    kind = array.type
    if kinds.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return _object(names, array.flatten()) if names else _all("{}", len(array))
    if kinds.is_map(kind):
        return _map(array)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return _joined(array, as_json(_entries(array, array.values)), "[", "]")
    return pc.fill_null(_plain(array), "")


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_null(kind):
        return _all("null", len(array))
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _quoted(_escaped(array.cast(pa.string())))
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return _quoted(_base64(array.cast(pa.large_binary())))
    if kinds.is_date(kind):
        return _quoted(array.cast(pa.string()))
    if kinds.is_timestamp(kind):
        utc = array.cast(pa.timestamp("us", "UTC" if kind.tz else None))
        return _quoted(pc.replace_substring(utc.cast(pa.string()), " ", "T"))
    if kinds.is_floating(kind):
        return _float(array)
    return array.cast(pa.string())


def _object(names: list[str], columns: list[pa.Array]) -> pa.Array:
    keys = _escaped(pa.array(names, pa.string())).to_pylist()  # bounded: the names of the columns
    parts: list[object] = []
    for number, (key, values) in enumerate(zip(keys, columns, strict=True)):
        parts += [f'{"," if number else "{"}"{key}":', as_json(values)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _map(array: pa.MapArray) -> pa.Array:
    """An object; keys that are no text become text."""
    keys, items = _entries(array, array.keys), _entries(array, array.items)
    named = _text(keys)
    if not kinds.is_string(keys.type) and not kinds.is_binary(keys.type):
        named = _quoted(pc.replace_substring(named, '"', ""))
    return _joined(array, pc.binary_join_element_wise(named, as_json(items), ":"), "{", "}")


def _entries(array: pa.Array, values: pa.Array) -> pa.Array:
    """Those of the values that belong to an array that may be a slice of another."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()  # bounded: two ends of an array
    return values.slice(first, last - first)


def _joined(array: pa.Array, texts: pa.Array, opening: str, closing: str) -> pa.Array:
    """The texts of the entries of each list, in brackets."""
    offsets = pc.subtract(array.offsets, array.offsets[0])
    kind = pa.LargeListArray if kinds.is_large_list(array.type) else pa.ListArray
    return pc.binary_join_element_wise(
        opening, pc.binary_join(kind.from_arrays(offsets, texts), ","), closing, ""
    )


def _float(array: pa.Array) -> pa.Array:
    """The shortest digits that give the same number back, with a point, so that -0.0 stays what it is."""
    text = array.cast(pa.string())
    whole = pc.match_substring_regex(text, r"^-?\d+$")
    text = pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    text = pc.if_else(pc.is_nan(array), '"NaN"', text)
    named = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_inf(array), named, text)


def _escaped(text: pa.Array) -> pa.Array:
    """Most strings need nothing; of those that do, only the characters that are there are replaced."""
    if not pc.any(pc.match_substring_regex(text, r'[\x00-\x1f"\\]')).as_py():  # bounded: one value
        return text
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py():  # bounded: one value
        for character, escape in _CONTROLS:
            text = pc.replace_substring(text, character, escape)
    return text


def _base64(array: pa.Array) -> pa.Array:
    """Three bytes are four characters; the last of a value are padded."""
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    groups = (lengths + 2) // 3
    first = np.concatenate([[0], np.cumsum(groups)])
    row = np.repeat(np.arange(len(array)), groups)
    start = offsets[row] + 3 * (np.arange(first[-1]) - first[row])
    stored = np.frombuffer(data if data is not None else b"", np.uint8)
    padded = np.concatenate([stored, np.zeros(2, np.uint8)]).astype(np.uint32)
    left = offsets[row + 1] - start if len(row) else start
    a, b, c = padded[start], padded[start + 1] * (left > 1), padded[start + 2] * (left > 2)
    bits = (a << 16) | (b << 8) | c
    characters = np.stack([_ALPHABET[(bits >> shift) & 63] for shift in (18, 12, 6, 0)], axis=1)
    characters[left < 3, 3] = ord("=")
    characters[left < 2, 2] = ord("=")
    return pa.LargeStringArray.from_buffers(
        len(array), pa.py_buffer(4 * first.astype(np.int64)), pa.py_buffer(characters.tobytes())
    ).cast(pa.string())


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _all(text: str, number: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(number, np.int64)))
