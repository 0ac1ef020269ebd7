"""A user's own operator: a vectorised function of an epoch's rows and the state of their keys.

The function is called once a task with whole tables, never per row: the rows of all its keys in canonical order, the
state rows of those keys, and a context. What it returns as state replaces the state of the touched keys; touched keys
that it leaves out are deleted.

Invariants: rows stand by key, then by `order_by`, then by all their columns, so that a replay sees the same tables;
a key's bucket is the slice of time in which it expires, or that of its label where it ends with its substream, and a key
that moves on leaves a tombstone behind it; keys that the watermark has passed leave before the epoch's rows are looked
at, and are shown to the function once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core import limits
from holdfast.core.errors import FlowError, PlanError
from holdfast.core.json import Json
from holdfast.flow.nodes import OwnOperator
from holdfast.flow.own import Context
from holdfast.flow.substreams import SUBSTREAM
from holdfast.protocols.watermark import NEVER_US, Timing
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import HASH, BoundKeys, hash_sql, quoted, sent, unfit_for_comparison
from holdfast.spark.operators import moving
from holdfast.spark.operators.contract import Changes, Direct, Shape, Times
from holdfast.spark.operators.ends import ended_rows, label_buckets, tombstones_of
from holdfast.spark.operators.event_time import INPUT, ON_TIME, REASONS, Clock, counted
from holdfast.spark.operators.own_function import OwnFunction
from holdfast.spark.operators.view import StateView, ViewColumn
from holdfast.spark.schemas import parse_schema
from holdfast.state.canonical import Bools, Ints, canonical_order, same_as_next
from holdfast.state.match import positions
from holdfast.state.schema import BUCKET, StateSchema, single, take_rows
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.spine import Spine

EXPIRES = "expires"


@dataclass(frozen=True)
class _Keys:
    """Keys of an epoch, in canonical order, with what the state holds of them."""

    heads: pa.Table  # hash and key columns, under the state's names
    known: Bools  # whether there is state
    bucket: Ints  # where it is
    expires: Ints  # when it ends
    values: pa.Table  # one row for each known key


@dataclass(frozen=True)
class StatefulOperator:
    """A user's function, bound to the types of its input."""

    stage: str
    keys: BoundKeys
    function: OwnFunction
    clock: Clock | None  # None without event time
    expire_us: int | None
    order: tuple[str, ...]  # columns that put the rows of a key in order, the user's first
    inputs: int
    user_state: t.StructType
    received: pa.Schema
    state: StateSchema
    output: pa.Schema
    output_ddl: t.StructType
    hash_bits: int
    description: Json

    @property
    def timing(self) -> Timing | None:
        """Without event time, the clock of the plan is what keys expire by; without expiry, state is kept for ever."""
        columns = (self.clock.time.column,) if self.clock else ()
        late_us = self.clock.time.late_us if self.clock else 0
        if self.expire_us is None:
            return Timing(columns, late_us, keeps_us=NEVER_US) if columns else None
        return Timing(
            columns,
            late_us,
            keeps_us=1,
            emits_at_close=True,
            slice_us=self._slice_us,
            holds_us=self.expire_us + 1 if columns else None,
        )

    @property
    def view(self) -> StateView:
        """Keys and state as the user declared them."""
        kinds = self.user_state.fields
        fields = zip(self._values, list(self.function.state)[len(self.keys.names) :], kinds, strict=True)
        columns = [
            ViewColumn(kind.name, kind.dataType.simpleString(), field.type, (stored,))
            for stored, field, kind in fields
        ]
        return StateView.of(self.state, [*self.keys.view, *columns], self.timing)

    @property
    def direct(self) -> Direct | None:
        """All columns, if the keys can be hashed here."""
        return Direct(self.keys.names, (tuple(self.function.rows.names),)) if self.keys.hashable else None

    def grouped(self, df: DataFrame, shape: Shape, times: Times) -> DataFrame:
        """Whole rows in the partition of the task that owns their key."""
        hashed = df.withColumn(HASH, f.expr(hash_sql(self.keys.names, self.hash_bits)))
        marks = [f.col(HASH), *([f.col(INPUT)] if self._tells_inputs else [])]
        return sent(hashed, shape.boundaries).select(
            *marks, *(f.col(quoted(name)) for name in self.function.rows.names)
        )

    def apply(self, rows: pa.Table, spine: Spine, times: Times) -> Changes:
        """Give the function its rows and its state, and store what it says."""
        return self.apply_rows([rows], spine, times)

    def apply_rows(self, sides: Sequence[pa.Table | None], spine: Spine, times: Times) -> Changes:
        """The same; rows are whole either way."""
        rows: pa.Table = sides[0]
        flags = self._flags(rows, times)
        on_time = self._ordered(take_rows(rows, np.flatnonzero(flags == ON_TIME)))
        expired = self._expired(spine, times)
        heads, first = self._heads(on_time)
        touched = self._known(heads, spine, times)
        state, output = self._called(on_time, touched, expired, times)
        ended = self._ended(spine, times)
        chosen, values = self._new_state(touched, state)
        expires = self._deadlines(on_time, first, touched, times)
        gone = moving.tombstones(expired, times.watermark_us), tombstones_of(ended)
        layer = self._layer(touched, chosen, values, expires, gone)
        added = len(chosen) - int(touched.known.sum()) - expired.num_rows - ended.num_rows
        newest = self.clock.newest(rows, self.clock.micros(rows), flags) if self.clock else ()
        whole = pa.concat_tables([output, self._final(ended, times)])
        return Changes(layer, {"out": whole, **self._sides(rows, flags)}, added, counted(flags), newest)

    @property
    def _label(self) -> str | None:
        """The state's column of the label, where keys end with their substream."""
        if self.function.on_end is None:
            return None
        return self.keys.stored.names[self.keys.names.index(SUBSTREAM)]

    def _ended(self, spine: Spine, times: Times) -> pa.Table:
        """The state rows of substreams that have ended."""
        if self._label is None:
            return self.state.changes.empty_table()
        return ended_rows(spine, self._label, times.ends)

    def _final(self, ended: pa.Table, times: Times) -> pa.Table:
        nobody = self._shown(self.state.changes.empty_table(), self.state.changes.empty_table())
        context = Context(times.epoch, times.watermark_us, times.now_us, nobody)
        return self.function.final(self._shown(ended, ended), context)

    @property
    def _tells_inputs(self) -> bool:
        return self.clock is not None and self.inputs > 1

    @property
    def _slice_us(self) -> int:
        assert self.expire_us is not None
        return max(1, self.expire_us // limits.EXPIRY_SLICES)

    def _flags(self, rows: pa.Table, times: Times) -> np.ndarray:
        if self.clock is None:
            return np.full(rows.num_rows, ON_TIME, np.int8)
        return self.clock.flags(self.clock.micros(rows), times, partial(np.add, 1))

    def _sides(self, rows: pa.Table, flags: np.ndarray) -> dict[str, pa.Table]:
        sides = {}
        for port in sorted(self.clock.ports if self.clock else ()):
            wanted = np.isin(flags, [flag for flag, (_, to) in REASONS.items() if to == port])
            if wanted.any():
                chosen = self._ordered(take_rows(rows, np.flatnonzero(wanted)))
                sides[port] = chosen.select(self.function.rows.names).cast(self.function.rows)
        return sides

    def _ordered(self, rows: pa.Table) -> pa.Table:
        """By key hash, key, the user's order, and whatever else tells rows apart."""
        h = np.asarray(single(rows[HASH]))
        by = [single(rows[name]) for name in (*self.keys.names, *self.order)]
        return take_rows(rows, canonical_order(np.zeros(len(h), np.int64), h, by))

    def _heads(self, rows: pa.Table) -> tuple[pa.Table, Ints]:
        """Each key once, and where its rows begin."""
        h = np.asarray(single(rows[HASH]))
        keys = [single(rows[name]) for name in self.keys.names]
        repeated = same_as_next(np.zeros(len(h), np.int64), h, keys)
        first = np.flatnonzero(np.append(True, ~repeated)[: len(h)])
        indices = pa.array(first)
        columns = [pa.array(h[first]), *(column.take(indices) for column in keys)]
        return pa.table(columns, names=[STATE_HASH, *self.keys.stored.names]), first

    def _known(self, heads: pa.Table, spine: Spine, times: Times) -> _Keys:
        """What the state holds of keys, unless it has expired."""
        h = np.asarray(single(heads[STATE_HASH]))
        if self._label is not None:
            return self._known_in_buckets(heads, label_buckets(single(heads[self._label])), spine)
        found = spine.lookup_everywhere(h, [single(heads[name]) for name in self.keys.stored.names])
        needle, bucket, values = found.needle, found.bucket, found.values
        expires = np.zeros(len(needle), np.int64)
        if self.expire_us is not None:
            expires = np.asarray(single(values[EXPIRES]))
            alive = np.flatnonzero(expires >= moving.or_lowest(times.watermark_us))
            needle, bucket, expires = needle[alive], bucket[alive], expires[alive]
            values = take_rows(values, alive)
        known = np.zeros(len(h), np.bool_)
        known[needle] = True
        return _Keys(heads, known, bucket, expires, values)

    def _known_in_buckets(self, heads: pa.Table, bucket: Ints, spine: Spine) -> _Keys:
        """What the state holds of keys whose bucket is known: that of their label."""
        h = np.asarray(single(heads[STATE_HASH]))
        order = np.lexsort((h, bucket))
        needles = take_rows(heads, order).add_column(0, BUCKET, pa.array(bucket[order]))
        found = spine.lookup(needles)
        known = np.zeros(len(h), np.bool_)
        known[order] = found.mask
        place = np.zeros(len(h), np.int64)
        place[order] = np.arange(len(h))
        values = take_rows(found.values, place[known])
        return _Keys(heads, known, bucket[known], np.zeros(int(known.sum()), np.int64), values)

    def _expired(self, spine: Spine, times: Times) -> pa.Table:
        """The state rows of keys that the watermark has passed."""
        if self.expire_us is None or self.timing is None:
            return self.state.changes.empty_table()
        return moving.ended(spine, self.timing, EXPIRES, times.watermark_us)

    def _called(
        self, rows: pa.Table, touched: _Keys, expired: pa.Table, times: Times
    ) -> tuple[pa.Table, pa.Table]:
        """What the user's function makes of it."""
        known = take_rows(touched.heads, np.flatnonzero(touched.known))
        context = Context(times.epoch, times.watermark_us, times.now_us, self._shown(expired, expired))
        return self.function(rows, self._shown(known, touched.values), context)

    def _shown(self, keys: pa.Table, values: pa.Table) -> pa.Table:
        """State rows under the user's names."""
        columns = [single(keys[name]) for name in self.keys.stored.names]
        columns += [single(values[name]) for name in self._values]
        return pa.table(columns, schema=self.function.state)

    @property
    def _values(self) -> list[str]:
        """The columns of the user's state, as the store calls them."""
        return [f"v{i}" for i in range(len(self.function.state) - len(self.keys.names))]

    def _new_state(self, touched: _Keys, state: pa.Table) -> tuple[Ints, pa.Table]:
        """Which keys have state now, in canonical order, and their values."""
        keys = [single(touched.heads[name]) for name in self.keys.stored.names]
        at = positions(keys, [single(state[name]) for name in self.keys.names])
        if (at < 0).any():
            raise FlowError(
                f"its function returned state of {int((at < 0).sum())} keys that have no rows",
                operation="stateful",
                hint="State can be returned for the keys of the epoch's rows only.",
            )
        order = np.argsort(at, kind="stable")
        if (np.diff(at[order]) == 0).any():
            raise FlowError("its function returned a key twice in its state", operation="stateful")
        return at[order], take_rows(state, order)

    def _deadlines(self, rows: pa.Table, first: Ints, touched: _Keys, times: Times) -> Ints:
        """When each touched key expires, if nothing more comes of it; never earlier than before."""
        if self.expire_us is None:
            return np.zeros(len(first), np.int64)
        if self.clock is None:
            return np.full(len(first), times.now_us + self.expire_us)
        micros = np.asarray(self.clock.micros(rows))
        deadline = np.maximum.reduceat(micros, first) if len(first) else micros
        deadline = deadline + self.expire_us
        deadline[touched.known] = np.maximum(deadline[touched.known], touched.expires)
        return deadline

    def _layer(
        self,
        touched: _Keys,
        chosen: Ints,
        values: pa.Table,
        expires: Ints,
        gone: Sequence[pa.Table],
    ) -> pa.Table:
        """State as it is now; tombstones where it was and is no longer, unless the floor hides it."""
        expiring = self.expire_us is not None
        bucket = -(-expires // self._slice_us) * self._slice_us if expiring else expires
        if self._label is not None:
            bucket = label_buckets(single(touched.heads[self._label]))
        ends = [pa.array(expires[chosen])] if expiring else []
        stored = [*ends, *(single(column) for column in values.columns[len(self.keys.names) :])]
        live = self._rows(touched.heads, chosen, bucket[chosen], True, stored)
        known = np.flatnonzero(touched.known)
        stays = np.zeros(len(touched.known), np.bool_)
        stays[chosen] = True
        moved = ~stays[known] | (bucket[known] != touched.bucket)
        left = self._rows(touched.heads, known[moved], touched.bucket[moved], False)
        return moving.layer_of(self.state, live, left, *gone)

    def _rows(
        self, heads: pa.Table, at: Ints, bucket: Ints, live: bool, values: Sequence[pa.Array] = ()
    ) -> pa.Table:
        of_key = take_rows(heads, at)
        keys = [single(of_key[name]) for name in self.keys.stored.names]
        stored = values or [pa.nulls(len(at), field.type) for field in self.state.values]
        head = [pa.array(bucket), single(of_key[STATE_HASH]), pa.repeat(pa.scalar(live), len(at))]
        return pa.table([*head, *keys, *stored], self.state.changes)


def bind_stateful(
    stage: str, node: OwnOperator, df: DataFrame, clock: Clock | None, inputs: int, hash_bits: int
) -> StatefulOperator:
    """Work out the types of a user's operator over a DataFrame that has the input's schema."""
    keys = BoundKeys.of(stage, df.schema, node.by)
    _check_order(stage, node, df.schema)
    state, output = (parse_schema(f"stage {stage!r}", ddl) for ddl in (node.state, node.output))
    taken = sorted(set(state.names) & set(node.by))
    if taken:
        raise PlanError(
            f"the state has columns named like keys: {', '.join(taken)}",
            operation="bind",
            stage=stage,
            hint="Leave the keys out of state=: they are there already.",
        )
    rows, user_state, arrow_output = (arrow_schema(stage, one) for one in (df.schema, state, output))
    stored = [(f"v{i}", field.type) for i, field in enumerate(user_state)]
    expires = [] if node.expire_us is None else [(EXPIRES, pa.int64())]
    others = [field.name for field in df.schema.fields if not unfit_for_comparison(field.dataType)]
    marks = [(HASH, pa.int64()), *([(INPUT, pa.int32())] if clock and inputs > 1 else [])]
    return StatefulOperator(
        stage,
        keys,
        OwnFunction(
            node.function, rows, pa.schema([*_renamed(keys), *user_state]), arrow_output, node.on_end
        ),
        clock,
        node.expire_us,
        tuple(dict.fromkeys([*node.order_by, *others])),
        inputs,
        state,
        pa.schema([*marks, *rows]),
        StateSchema(keys.stored, pa.schema([*expires, *stored])),
        arrow_output,
        output,
        hash_bits,
        {
            "operator": "stateful",
            "keys": keys.description,
            "state": state.simpleString(),
            "expires": "never" if node.expire_us is None else f"{node.expire_us} us",
            "hash_bits": hash_bits,
            **({"ends": "with its substream"} if node.on_end else {}),
        },
    )


def _check_order(stage: str, node: OwnOperator, schema: t.StructType) -> None:
    for name in node.order_by:
        if name not in schema.names:
            raise PlanError(
                f"there is no column {name!r} to order by",
                operation="bind",
                stage=stage,
                hint=f"The columns are {', '.join(schema.names)}.",
            )
        unfit = unfit_for_comparison(schema[name].dataType)
        if unfit:
            raise PlanError(
                f"rows cannot be ordered by {name!r}: it holds a {unfit}", operation="bind", stage=stage
            )


def _renamed(keys: BoundKeys) -> list[pa.Field]:
    """The key columns under the user's names."""
    return [pa.field(name, field.type) for name, field in zip(keys.names, keys.stored, strict=True)]
