"""Small states to test with: tables from Python rows, a hash that any key type has."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from holdfast.state.canonical import canonical_order
from holdfast.state.layer import LayerInfo, write_layer
from holdfast.state.schema import StateSchema, take_rows

ALL = (0, 4096)
COUNTS = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))


def mixed(numbers):
    """A decent hash of whole numbers, vectorised."""
    x = np.asarray(numbers, np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(31)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return (x ^ (x >> np.uint64(29))).view(np.int64)


def hash_of(key):
    """A hash of any Python key; what counts as one key must look the same."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def counts(rows, bucket=0, cut=False, live=True):
    """A change table of `COUNTS` from {key: n}; `cut` leaves the hash its top 8 bits."""
    k = np.fromiter(rows.keys(), np.int64, len(rows))
    h = mixed(k) & -(1 << 56) if cut else mixed(k)
    n = pa.array(list(rows.values()), pa.int64())
    return pa.table([np.full(len(k), bucket), h, np.full(len(k), live), k, n], schema=COUNTS.changes)


def needles_of(changes, schema=COUNTS):
    """The needles of the rows of a change table, in canonical order."""
    table = changes.select(schema.needles.names).combine_chunks()
    keys = [table[name].combine_chunks() for name in schema.keys.names]
    return take_rows(table, canonical_order(table["_bucket"].to_numpy(), table["_h"].to_numpy(), keys))


def layer(root, name, changes, schema=COUNTS, epoch=0, slots=ALL, rows_max=1 << 18):
    return LayerInfo(epoch, epoch, write_layer(root, name, changes, schema, slots, rows_max))


def contents(table):
    """{(bucket, key): n} of a `COUNTS` table."""
    return {
        (bucket, k): n
        for bucket, k, n in zip(*(table[c].to_pylist() for c in ("_bucket", "k", "n")), strict=True)
    }
