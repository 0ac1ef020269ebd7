"""Generated rows follow from the recipe alone; the rate decides only when."""

from __future__ import annotations

import hashlib
import importlib
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from holdfast.core.errors import InputError, PlanError
from holdfast.flow.generate import GenerateSource, generate
from holdfast.sources import generate as module
from holdfast.sources.contract import NOTHING, Limits, Taken
from holdfast.sources.generate import Generate
from holdfast.sources.generated_rows import BLOCK_ROWS, Columns
from holdfast.spark.arrow_types import arrow_schema

# A schema is parsed by Spark.
pytestmark = pytest.mark.usefixtures("spark")

ORDERS = "id string, user string, amount double, qty int, ts timestamp"


def columns(description: GenerateSource) -> Columns:
    schema = t.StructType.fromDDL(description.schema)
    return Columns("events", description.recipe, arrow_schema("events", schema))  # type: ignore[arg-type]


def blocks(description: GenerateSource, *numbers: int) -> pa.Table:
    made = columns(description)
    return pa.Table.from_batches([made.block(number) for number in numbers])


def test_rows_are_the_same_on_every_machine() -> None:
    """A digest that was written down once; only what NumPy promises to keep across versions goes into it."""
    made = blocks(generate(rows=1, seed=7, keys={"user": 10}, repeat=0.2, disorder="3 s"), 0, 1)
    made = made.set_column(4, "ts", made["ts"].cast(pa.int64()))
    text = "\n".join(str(row) for row in made.to_pylist())
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "fe0cb5341057a51c"


def test_another_seed_or_block_gives_other_rows() -> None:
    one, other = generate(rows=1, seed=1), generate(rows=1, seed=2)
    assert blocks(one, 3).equals(blocks(one, 3))
    assert not blocks(one, 3)["amount"].equals(blocks(other, 3)["amount"])
    assert not blocks(one, 3)["amount"].equals(blocks(one, 4)["amount"])


def test_ids_differ_in_every_row_and_keys_have_so_many_values() -> None:
    made = blocks(generate("id string, n bigint, k bigint, u string", rows=1, keys={"k": 7, "u": 3}), 0, 5)
    assert len(set(made["id"].to_pylist())) == len(set(made["n"].to_pylist())) == 2 * BLOCK_ROWS
    assert sorted(set(made["k"].to_pylist())) == list(range(7))
    assert sorted(set(made["u"].to_pylist())) == ["u-0", "u-1", "u-2"]


def test_times_rise_by_the_spacing_and_lag_by_no_more_than_the_disorder() -> None:
    description = generate(
        "ts timestamp", rows=1, start="2026-01-01T01:00:00+01:00", spacing="10 ms", disorder="1 second"
    )
    times = np.asarray(blocks(description, 2)["ts"].cast(pa.int64()))
    place = 1_767_225_600_000_000 + np.arange(2 * BLOCK_ROWS, 3 * BLOCK_ROWS) * 10_000
    behind = place - times
    assert behind.min() >= 0
    assert 900_000 < behind.max() <= 1_000_000


@pytest.mark.parametrize("first", [0, 3])
def test_a_repeat_equals_a_row_that_came_before_it(first: int) -> None:
    """Rows of the block before count, so of the first block that is looked at only the later ones are judged."""
    made = blocks(generate(rows=1, repeat=0.25, keys={"user": 5}), first, first + 1, first + 2)
    ids, seen, repeats = made["id"].to_pylist(), {}, 0
    for row, record in enumerate(made.to_pylist()):
        own = f"id-{first * BLOCK_ROWS + row}"
        if ids[row] != own and row >= BLOCK_ROWS:
            repeats += 1
            assert seen[ids[row]] == record
        seen.setdefault(ids[row], record)
    assert 0.23 < repeats / (2 * BLOCK_ROWS) < 0.27


def test_every_type_that_can_be_generated_is() -> None:
    kinds = {
        "a": "tinyint", "b": "smallint", "c": "int", "d": "bigint", "e": "float", "f": "double", "g": "boolean",
        "h": "date", "i": "timestamp", "j": "timestamp_ntz", "k": "decimal(10,2)", "l": "decimal(3,3)",
        "m": "decimal(38,0)", "n": "string",
    }  # fmt: skip
    made = blocks(generate(", ".join(f"{name} {kind}" for name, kind in kinds.items()), rows=1), 0)
    assert all(column.null_count == 0 for column in made.columns)
    assert all(len(set(made[name].to_pylist())) > 1 for name in set(kinds) - {"h"})
    assert 0 <= min(made["k"].to_pylist()) < max(made["k"].to_pylist()) < Decimal(100)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"per_epoch": 0}, "per_epoch must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"rate": 0}, "rate is rows a second"),
        ({"repeat": 1}, "repeat is a share"),
        ({"start": "yesterday"}, "start='yesterday' is not a time"),
        ({"spacing": "1 month"}, "is not a duration"),
        ({"keys": {"user": 0}}, "keys gives column 'user' 0 values"),
        ({"keys": {"nobody": 3}}, "names 'nobody', which is no column"),
        ({"keys": {"amount": 3}}, "column 'amount' of source 'events' is double"),
        ({"schema": "a array<int>"}, "column 'a' of source 'events'"),
    ],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Generate("events", generate(**{"rows": 1, **options}))  # type: ignore[arg-type]


def test_a_rate_goes_by_the_clock_since_the_flow_first_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000_000_000]
    monkeypatch.setattr(module.time, "time_ns", lambda: now[0] * 1_000_000)
    description = generate(rows=25, per_epoch=10, rate=10)
    source = Generate("events", description)
    assert source.next(NOTHING, Limits()) == []
    now[0] += 1_000
    (first,) = source.next(NOTHING, Limits())
    assert (first.identity, first.rows, source.more_to_come()) == ("0", 10, True)
    now[0] += 500  # the flow is down meanwhile
    resumed = Generate("events", description, first)
    assert resumed.next(Taken(1), Limits()) == []
    now[0] += 1_000
    assert [(item.identity, item.rows) for item in resumed.next(Taken(1), Limits())] == [("1", 10), ("2", 5)]
    assert not resumed.more_to_come()
    now[0] -= 10_000_000  # a clock that is set back takes nothing back, and brings nothing
    assert resumed.next(Taken(3), Limits()) == []


def test_without_a_rate_all_is_there_but_discovered_in_parts() -> None:
    source = Generate("events", generate(rows=2_500_000, per_epoch=1_000))
    found = source.next(NOTHING, Limits())
    assert len(found) == 1_000
    assert source.more_to_come()
    known = {item.identity for item in found}
    assert source.next(Taken(len(known)), Limits())[0].identity == "1000"


def test_other_settings_on_an_old_work_directory_are_refused() -> None:
    (first,) = Generate("events", generate(rows=10, seed=1)).next(NOTHING, Limits())
    Generate("events", generate(rows=10, seed=1, rate=5), first)
    for other in ({"rows": 10, "seed": 2}, {"rows": 11, "seed": 1}, {"rows": 10, "seed": 1, "per_epoch": 3}):
        with pytest.raises(InputError, match="other settings"):
            Generate("events", generate(**other), first)  # type: ignore[arg-type]


def test_the_demo_compares_with_all_rows_of_a_generator(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
    # Tests of the pages make flows of this name too.
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    demo = importlib.import_module("demo")
    assert demo.generated(spark, generate(rows=BLOCK_ROWS + 5, per_epoch=10)).count() == BLOCK_ROWS + 5
