"""Where keys of one table are in another: by their values alone, whatever their types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.canonical import Ints, comparable


def positions(keys: Sequence[pa.Array], sought: Sequence[pa.Array]) -> Ints:
    """For each sought key, its row among `keys`, each of which is there once; -1 if it is not there.

    >>> positions([pa.array([3, None, 1])], [pa.array([None, 2, 3])]).tolist()
    [1, -1, 0]
    """
    known = len(keys[0])
    codes = _codes([pa.concat_arrays([left, right]) for left, right in zip(keys, sought, strict=True)])
    at = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    at[codes[:known]] = np.arange(known)
    return at[codes[known:]]


def _codes(columns: Sequence[pa.Array]) -> Ints:
    """Numbers that are equal exactly where rows are."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(comparable(column), null_encoding="encode")
        of_column = np.asarray(encoded.indices).astype(np.int64)
        pairs = codes * (len(encoded.dictionary) + 1) + of_column
        codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return codes
