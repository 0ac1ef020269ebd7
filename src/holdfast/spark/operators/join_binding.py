"""Gives a join its types: what can be a key, which places columns share, and what the output's columns are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import types as t

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.joins import ASKING, OUTER, SIDES, Matching
from holdfast.flow.nodes import Join
from holdfast.flow.ports import side_of
from holdfast.spark.arrow_types import arrow_schema
from holdfast.spark.keys import BoundKeys
from holdfast.spark.operators.event_time import INPUT, Clock
from holdfast.spark.operators.existence import ExistenceOperator
from holdfast.spark.operators.join import MATCHED, JoinOperator
from holdfast.spark.operators.packing import Packing
from holdfast.spark.operators.pairing import Interval
from holdfast.spark.operators.two_sides import PLACE
from holdfast.state.schema import HASH as STATE_HASH
from holdfast.state.schema import StateSchema


def bind_join(
    stage: str,
    node: Join,
    schemas: tuple[t.StructType, t.StructType],
    feeds: int,
    ports: frozenset[str],
    hash_bits: int,
) -> JoinOperator | ExistenceOperator:
    """Work out the types of a join of rows of these schemas; `feeds` counts the inputs of both sides."""
    matching = node.matching
    keys = _bound_keys(stage, schemas, matching)
    clocks = _clocks(stage, schemas, matching, feeds, ports)
    needed = _needed(schemas, matching)
    if not any(side_of(port) == 1 for port in ports):
        # Nobody asks for late rows of the right, so that they need not bring along what is not joined.
        clocks = clocks[0], replace(clocks[1], side=arrow_schema(stage, needed[1]))
        schemas = needed
    packing = Packing.of(stage, schemas, matching.keys, [time.column for time in matching.times])
    chosen, output = _output(stage, schemas, matching, packing)
    tag = [(INPUT, pa.int32())] if feeds > 2 else []
    both = (
        keys,
        clocks,
        Interval(matching.low_us, matching.high_us),
        packing,
        feeds,
        pa.schema([(STATE_HASH, pa.int64()), *tag, *packing.stored]),
        _state(matching, packing),
        arrow_schema(stage, output),
        output,
        hash_bits,
        _description(needed, keys, matching, hash_bits),
    )
    if matching.how in ASKING:
        return ExistenceOperator(*both, matching.how == "anti", tuple(place for _, place in chosen))
    return JoinOperator(*both, OUTER[matching.how], chosen)


def _needed(
    schemas: tuple[t.StructType, t.StructType], matching: Matching
) -> tuple[t.StructType, t.StructType]:
    """The columns that are joined: all, but of the right of a semi or an anti join only the keys and the time."""
    left, right = schemas
    if matching.how not in ASKING:
        return schemas
    names = dict.fromkeys([*matching.keys, matching.times[1].column])
    return left, t.StructType([right[name] for name in names])


def _state(matching: Matching, packing: Packing) -> StateSchema:
    if matching.how in ASKING:
        return StateSchema(PLACE, pa.schema([packing.stored.field(place) for place in packing.left_places]))
    matched = [(MATCHED, pa.bool_())] if OUTER[matching.how] else []
    return StateSchema(PLACE, pa.schema([*matched, *packing.stored]))


def _bound_keys(stage: str, schemas: Sequence[t.StructType], matching: Matching) -> BoundKeys:
    """Columns of both sides, of one type: rows with equal keys must have equal hashes."""
    for side, schema in zip(SIDES, schemas, strict=True):
        missing = [name for name in matching.keys if name not in schema.names]
        if missing:
            raise PlanError(
                f"the {side} stream has no column {missing[0]!r} to join on",
                operation="bind",
                stage=stage,
                hint=f"Its columns are {', '.join(schema.names)}.",
            )
    left, right = (BoundKeys.of(stage, schema, matching.keys) for schema in schemas)
    for one, other in zip(left.fields, right.fields, strict=True):
        types = one.dataType.simpleString(), other.dataType.simpleString()
        if types[0] != types[1]:
            raise PlanError(
                f"the key {one.name!r} is a {types[0]} on the left and a {types[1]} on the right",
                operation="bind",
                stage=stage,
                hint="Cast one of them in a transform before.",
            )
    return left


def _clocks(
    stage: str,
    schemas: tuple[t.StructType, t.StructType],
    matching: Matching,
    feeds: int,
    ports: frozenset[str],
) -> tuple[Clock, Clock]:
    left, right = (
        Clock.of(stage, time, schema, feeds, ports)
        for time, schema in zip(matching.times, schemas, strict=True)
    )
    if left.zoned != right.zoned:
        raise PlanError(
            "one time column is a timestamp and the other a timestamp_ntz: they cannot be compared",
            operation="bind",
            stage=stage,
            hint="Cast one of them in a transform before.",
        )
    return left, right


def _output(
    stage: str, schemas: Sequence[t.StructType], matching: Matching, packing: Packing
) -> tuple[tuple[tuple[int, str], ...], t.StructType]:
    """Where each output column comes from, and what it is called: keys once, then the others of both sides."""
    others = [[field for field in schema.fields if field.name not in matching.keys] for schema in schemas]
    if matching.how in ASKING:
        others[1] = []
    lower = [{field.name.lower() for field in fields} for fields in others]
    clashing = lower[0] & lower[1]
    # As in Spark: of a right join, a pair has the key of its right row.
    of_keys = 1 if matching.how == "right" else 0
    named = [(of_keys, name, schemas[of_keys][name]) for name in matching.keys]
    for side, fields in enumerate(others):
        for field in fields:
            suffix = matching.suffixes[side] if field.name.lower() in clashing else ""
            named.append((side, field.name + suffix, field))
    names = [name.lower() for _, name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(
            f"the output of the join would have several columns named {', '.join(twice)}",
            operation="bind",
            stage=stage,
            hint="Choose other suffixes, or rename columns in a transform before.",
        )
    chosen = tuple((side, packing.place(side, field.name)) for side, _, field in named)
    return chosen, t.StructType([t.StructField(name, field.dataType, True) for _, name, field in named])


def _description(
    schemas: Sequence[t.StructType], keys: BoundKeys, matching: Matching, hash_bits: int
) -> Json:
    """What must not change while there is state."""
    columns = [
        ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        for schema in schemas
    ]
    return {
        "operator": f"{matching.how} join",
        "keys": keys.description,
        "left": columns[0],
        "right": columns[1],
        "times": ", ".join(time.column for time in matching.times),
        "within": f"{matching.low_us} us to {matching.high_us} us",
        "hash_bits": hash_bits,
    }
