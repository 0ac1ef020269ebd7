"""The judge names the class that a reader's rows show, whatever their types, their order and the last bits of doubles."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.verify.classes import ROWS_SHOWN_MAX, Recovery, Seen, Verdict, judge, worst

COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "raw": pa.binary(),
        "price": pa.decimal128(12, 2),
        "at": pa.timestamp("us", "Europe/Berlin"),
        "mean": pa.float64(),
        "pair": pa.struct({"a": pa.int32(), "b": pa.float64()}),
        "list": pa.list_(pa.float64()),
        "tags": pa.map_(pa.string(), pa.int64()),
    }
)
NEVER = dt.datetime(2001, 9, 9, 1, 46, 40, tzinfo=dt.UTC)
doubles = st.floats(width=64)
values = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(0, 3),
        "name": st.none() | st.sampled_from(["", "a", "ä\x00"]),
        "raw": st.none() | st.binary(max_size=2),
        "price": st.none() | st.integers(-5, 5).map(lambda cents: decimal.Decimal(cents) / 100),
        "at": st.none() | st.integers(0, 3).map(lambda hours: NEVER + dt.timedelta(hours=hours)),
        "mean": st.none() | doubles,
        "pair": st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | doubles}),
        "list": st.none() | st.lists(st.none() | doubles, max_size=2),
        "tags": st.none() | st.dictionaries(st.sampled_from("xy"), st.none() | st.integers(0, 1)).map(lambda d: [*d.items()]),
    }
)  # fmt: skip
row_lists = st.lists(values, max_size=6)
some_rows = st.lists(values, min_size=1, max_size=6)
few = settings(max_examples=30, deadline=None)


def table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, COLUMNS)


def seen(rows: pa.Table | dict[str, object], key: tuple[str, ...] = (), order: str | None = None) -> Seen:
    return Seen("out", rows if isinstance(rows, pa.Table) else pa.table(rows), key, order)


def revised(*rows: tuple[int, object, int]) -> Seen:
    """Deliveries (key, value, epoch) to a keyed sink."""
    keys, found, epochs = zip(*rows, strict=True) if rows else ((), (), ())
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "epoch": pa.int64()})
    return seen(pa.table([list(keys), list(found), list(epochs)], schema=schema), ("k",), "epoch")


def recovery(expected: Seen, found: Seen, skipped: Seen | None = None) -> Recovery:
    return judge(expected, found, skipped).recovery


@few
@given(row_lists, st.randoms(use_true_random=False))
@example([{name: None for name in COLUMNS.names}] * 2, None)
def test_a_permutation_is_precise(rows: list[dict[str, object]], random: object) -> None:
    shuffled = list(rows)
    if random is not None:
        random.shuffle(shuffled)
    verdict = judge(seen(table(rows)), seen(table(shuffled)))
    assert verdict.recovery is Recovery.PRECISE
    assert verdict.missing.num_rows == verdict.extra.num_rows == 0
    assert verdict.checked == "order unchecked"


@few
@given(some_rows, st.data())
def test_a_dropped_row_is_divergent_also_where_an_equal_one_is_left(rows, data) -> None:
    gone = data.draw(st.integers(0, len(rows) - 1))
    verdict = judge(seen(table(rows)), seen(table(rows[:gone] + rows[gone + 1 :])))
    assert verdict.recovery is Recovery.DIVERGENT
    assert verdict.missing["times"].to_pylist() == [1]
    assert verdict.extra.num_rows == 0
    json.dumps(verdict.to_json(), allow_nan=False)


@few
@given(some_rows, st.data())
def test_a_duplicated_row_is_repeating(rows, data) -> None:
    again = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=4))
    verdict = judge(seen(table(rows)), seen(table(again + rows)))
    assert verdict.recovery is Recovery.REPEATING
    assert sum(verdict.extra["times"].to_pylist()) == len(again)


@few
@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=6),
    st.lists(st.integers(-1, 1), min_size=6, max_size=6),
)
def test_doubles_within_1e_12_are_equal_and_1e_6_are_not(numbers: list[float], signs: list[int]) -> None:
    exact = np.array(numbers)
    scale = np.maximum(1.0, np.abs(exact)) * np.array(signs[: len(exact)])
    assert recovery(seen({"x": exact}), seen({"x": (exact + scale * 1e-12)[::-1]})) is Recovery.PRECISE
    away = exact.copy()
    away[0] = np.abs(exact).max() * (1 + 1e-6) + 1e-6
    assert recovery(seen({"x": exact}), seen({"x": away})) is Recovery.DIVERGENT


def test_last_bits_of_one_double_do_not_mix_up_the_next() -> None:
    wanted = {"x": [1.0, 1.0 + 2e-16, 7.0], "y": [5.0, 3.0, 1.0]}
    found = {"x": [1.0 + 2e-16, 7.0, 1.0], "y": [5.0, 1.0, 3.0]}
    assert recovery(seen(wanted), seen(found)) is Recovery.PRECISE
    assert recovery(seen(wanted), seen({**found, "y": [5.0, 1.0, 5.0]})) is Recovery.DIVERGENT


def test_seconds_since_1970_are_told_apart_though_each_is_close_to_the_next() -> None:
    seconds = 1.7e9 + np.arange(50.0)
    noisy = seconds + np.tile([1e-6, -1e-6], 25)
    assert recovery(seen({"x": seconds}), seen({"x": noisy[::-1]})) is Recovery.PRECISE
    assert recovery(seen({"x": seconds}), seen({"x": seconds[1:]})) is Recovery.DIVERGENT
    assert recovery(seen({"x": seconds}), seen({"x": seconds + 9})) is Recovery.DIVERGENT
    assert recovery(seen({"x": seconds}), seen({"x": np.append(seconds, seconds[7])})) is Recovery.REPEATING


def test_order_is_checked_too_where_doubles_are_close_to_each_other() -> None:
    def delivered(found: list[float]) -> Seen:
        return seen({"k": [1] * len(found), "x": found, "epoch": range(len(found))}, ("k",), "epoch")

    first, second, third = (1.7e9 + step for step in (0.0, 1.0, 2.0))
    assert recovery(delivered([first, second, third]), delivered([first, second, third])) is Recovery.PRECISE
    assert (
        recovery(delivered([first, second, third]), delivered([second, first, third])) is Recovery.CONVERGENT
    )


def test_nan_infinities_and_null_equal_only_themselves() -> None:
    special = [float("nan"), float("inf"), float("-inf"), None, 0.0]
    assert recovery(seen({"x": special}), seen({"x": [*special[1:], -float("nan")]})) is Recovery.PRECISE
    for one, other in itertools.permutations(special, 2):
        wanted, found = (seen({"x": pa.array([value], pa.float64())}) for value in (one, other))
        assert recovery(wanted, found) is Recovery.DIVERGENT


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (pa.array([[1], None]), pa.array([[1], []])),
        (pa.array([[[1.0]], None]), pa.array([[[1.0, None]], None])),
        (pa.array([{"a": None}, None]), pa.array([None, None], pa.struct({"a": pa.null()}))),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), pa.array([None], pa.list_(pa.float32(), 2))),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "b"]).dictionary_encode()),
        (pa.array([b"ab"], pa.binary(2)), pa.array([b"ba"], pa.binary(2))),
    ],
)
def test_values_that_differ_inside_or_in_being_there_are_told_apart(
    wanted: pa.Array, found: pa.Array
) -> None:
    assert recovery(seen({"x": wanted}), seen({"x": found})) is Recovery.DIVERGENT
    assert recovery(seen({"x": wanted}), seen({"x": wanted})) is Recovery.PRECISE


def test_a_union_is_refused_rather_than_guessed_at() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    )
    with pytest.raises(TypeError, match="cannot be compared"):
        judge(seen({"x": union}), seen({"x": union}))


def test_no_rows_and_no_columns_are_precise() -> None:
    empty = table([])
    assert recovery(seen(empty), seen(empty)) is Recovery.PRECISE
    assert recovery(seen({}), seen({})) is Recovery.PRECISE
    assert recovery(revised(), revised()) is Recovery.PRECISE
    assert recovery(revised((1, 1, 1)), revised()) is Recovery.DIVERGENT
    assert recovery(revised(), revised((1, 1, 1))) is Recovery.DIVERGENT


def test_other_columns_are_divergent_and_named() -> None:
    verdict = judge(seen({"x": [1]}), seen({"x": ["1"]}))
    assert verdict.recovery is Recovery.DIVERGENT
    assert verdict.checked == "nothing but the columns, which differ: x int64 expected, x string seen"


def test_the_order_of_columns_and_whether_they_may_be_null_do_not_matter() -> None:
    strict = pa.schema([pa.field("y", pa.string(), nullable=False), pa.field("x", pa.int64())])
    found = pa.table([["a"], [1]], schema=strict)
    assert recovery(seen({"x": [1], "y": ["a"]}), seen(found)) is Recovery.PRECISE


def test_skipped_epochs_make_a_gap_and_the_rows_given_up_are_shown() -> None:
    whole, rest, other = seen({"x": [1, 2, 3]}), seen({"x": [1, 3]}), seen({"x": [1, 2]})
    verdict = judge(whole, rest, skipped=rest)
    assert verdict.recovery is Recovery.GAP
    assert verdict.missing.to_pylist() == [{"x": 2, "times": 1}]
    assert recovery(whole, whole, skipped=rest) is Recovery.PRECISE
    assert recovery(whole, rest, skipped=other) is Recovery.DIVERGENT


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=8), st.data())
def test_revisions_that_end_the_same_converge(ends: list[tuple[int, int]], data) -> None:
    rows = [(key, value, epoch) for epoch, (key, value) in enumerate(ends)]
    others = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(10, 19)), min_size=1, max_size=4))
    undone = [(key, value, -1) for key, value in others if key in {row[0] for row in rows}]
    found = recovery(revised(*rows), revised(*undone, *rows))
    assert found is (Recovery.CONVERGENT if undone else Recovery.PRECISE)


deliveries = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=5)


def plainly(wanted: list[tuple[int, int]], found: list[tuple[int, int]], *, keyed: bool) -> Recovery:
    """The classes, a row at a time."""
    before, after = Counter(wanted), Counter(found)
    sequences = [{key: [v for k, v in rows if k == key] for key, _ in rows} for rows in (wanted, found)]
    if sequences[0] == sequences[1] if keyed else before == after:
        return Recovery.PRECISE
    repeated = before < after and set(before) == set(after)
    if keyed and dict(wanted) != dict(found):
        return Recovery.DIVERGENT
    if repeated:
        return Recovery.REPEATING
    return Recovery.CONVERGENT if keyed else Recovery.DIVERGENT


@settings(max_examples=100, deadline=None)
@given(deliveries, deliveries, st.booleans())
def test_the_judge_agrees_with_the_definitions_taken_literally(wanted, found, extended) -> None:
    found = wanted + found if extended else found
    whole, rest = (revised(*((k, v, n) for n, (k, v) in enumerate(rows))) for rows in (wanted, found))
    assert recovery(whole, rest) is plainly(wanted, found, keyed=True)
    bare = [Seen("out", side.rows.drop_columns(["epoch"])) for side in (whole, rest)]
    assert recovery(*bare) is plainly(wanted, found, keyed=False)


def test_only_the_last_row_of_a_key_counts_for_convergence() -> None:
    whole = revised((1, 10, 1), (1, 20, 2), (2, 30, 1))
    assert recovery(whole, revised((1, 20, 5), (2, 30, 9))) is Recovery.CONVERGENT
    assert recovery(whole, revised((1, 10, 1), (2, 30, 1))) is Recovery.DIVERGENT
    assert recovery(whole, revised((1, 10, 1), (1, 20, 2))) is Recovery.DIVERGENT


def test_a_value_that_comes_back_is_no_duplicate() -> None:
    whole = revised((1, 10, 1), (1, 20, 2), (1, 10, 3))
    assert recovery(whole, revised((1, 10, 1), (1, 20, 2))) is Recovery.DIVERGENT


def test_a_late_repetition_of_an_older_revision_is_divergent() -> None:
    whole = revised((1, 10, 1), (1, 20, 2))
    assert recovery(whole, revised((1, 10, 1), (1, 20, 2), (1, 10, 3))) is Recovery.DIVERGENT
    assert recovery(whole, revised((1, 10, 1), (1, 20, 2), (1, 10, 3), (1, 20, 4))) is Recovery.REPEATING


def test_the_sequence_per_key_counts_and_not_the_epochs() -> None:
    whole = revised((1, 10, 1), (1, 20, 2), (2, 30, 1), (1, 40, 3))
    assert judge(whole, whole).checked == "order per key"
    assert recovery(whole, revised((2, 30, 99), (1, 10, 4), (1, 20, 6), (1, 40, 7))) is Recovery.PRECISE
    swapped = judge(whole, revised((1, 10, 2), (1, 20, 1), (2, 30, 1), (1, 40, 3)))
    assert swapped.recovery is Recovery.CONVERGENT
    assert swapped.checked == "order per key; 1 row came too late, the first where k = 1"
    assert recovery(whole, revised((1, 10, 1), (1, 20, 3), (2, 30, 1), (1, 40, 2))) is Recovery.DIVERGENT


def test_rows_that_came_together_have_no_order() -> None:
    together, apart = revised((1, 10, 1), (1, 20, 1)), revised((1, 20, 1), (1, 10, 2))
    assert recovery(together, apart) is Recovery.PRECISE
    assert recovery(apart, together) is Recovery.PRECISE


def test_which_of_two_rows_came_last_may_be_unknown() -> None:
    assert recovery(revised((1, 20, 2)), revised((1, 10, 2), (1, 20, 2))) is Recovery.UNKNOWN
    assert recovery(revised((1, 20, 2)), revised((1, 10, 2), (1, 30, 2))) is Recovery.DIVERGENT
    unordered = [seen({"k": [1, 1][:count], "v": [2, 3][:count]}, ("k",)) for count in (1, 2)]
    assert recovery(*unordered) is Recovery.UNKNOWN
    assert recovery(unordered[0], seen({"k": [1], "v": [9]}, ("k",))) is Recovery.DIVERGENT


def test_the_first_ten_differing_rows_are_shown_with_how_often_each_differs() -> None:
    verdict = judge(seen({"times": [0]}), seen({"times": [0, *range(99, 50, -1), 99]}))
    assert verdict.extra.column_names == ["times", "times_"]
    assert verdict.extra["times"].to_pylist() == list(range(99, 99 - ROWS_SHOWN_MAX, -1))
    assert verdict.extra["times_"].to_pylist() == [2] + [1] * (ROWS_SHOWN_MAX - 1)
    assert verdict.checked == "order unchecked; 0 rows missing, 50 too many"


def test_sinks_that_are_read_differently_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        judge(seen({"k": [1]}, ("k",)), seen({"k": [1]}))


def test_the_worst_sink_counts() -> None:
    none = pa.table({"times": pa.array([], pa.int64())})
    made = [Verdict(found, found.value, none, none, "") for found in Recovery]
    assert worst(made).recovery is Recovery.DIVERGENT
    assert worst(one for one in made if one.recovery is not Recovery.DIVERGENT).recovery is Recovery.UNKNOWN
    assert worst(made[:1]).recovery is Recovery.PRECISE


def test_nothing_worse_than_what_was_promised_is_allowed() -> None:
    assert [found for found in Recovery if Recovery.PRECISE.allows(found)] == [Recovery.PRECISE]
    assert not Recovery.GAP.allows(Recovery.REPEATING)
    assert not Recovery.REPEATING.allows(Recovery.GAP)
    assert Recovery.CONVERGENT.allows(Recovery.REPEATING)
    assert not any(
        promise.allows(Recovery.UNKNOWN) for promise in Recovery if promise is not Recovery.UNKNOWN
    )
