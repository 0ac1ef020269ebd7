"""The classes of recovery, and the judge that says which one the rows of a sink show.

It verifies: that a reader saw the same rows as one of a run without failures, each as often, and, where the sink is keyed
and records the order of delivery, that no two rows of a key came in the opposite order. It does not verify the order of rows
of different keys, nor of rows that one of the two runs delivered together, nor which epoch delivered a row.

A row that a sink without key lost is lost, also where an equal one is still there: only revisions may be missing, and
only if the last row of every key is the same. A repeated row that leaves an older revision as the last one of its key
does not count as a mere repetition: the reader ends up with another value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.json import Json
from holdfast.verify.rows import Integers, numbered
from holdfast.verify.values import counted, plain_rows

# Rows that are shown of a difference: enough to see what it is about.
ROWS_SHOWN_MAX = 10


class Recovery(Enum):
    """What a reader of a sink noticed of a failure."""

    PRECISE = "precise"
    GAP = "gap"
    REPEATING = "rollback-repeating"
    CONVERGENT = "rollback-convergent"
    DIVERGENT = "rollback-divergent"
    UNKNOWN = "unknown"

    def allows(self, observed: Recovery) -> bool:
        """Whether somebody who was promised this class may see `observed`: never anything that is worse.

        >>> Recovery.REPEATING.allows(Recovery.PRECISE), Recovery.REPEATING.allows(Recovery.GAP)
        (True, False)
        """
        return observed in _ALLOWED[self]


_ALLOWED = {
    Recovery.PRECISE: {Recovery.PRECISE},
    Recovery.GAP: {Recovery.PRECISE, Recovery.GAP},
    Recovery.REPEATING: {Recovery.PRECISE, Recovery.REPEATING},
    Recovery.CONVERGENT: {Recovery.PRECISE, Recovery.REPEATING, Recovery.CONVERGENT},
    Recovery.DIVERGENT: set(Recovery) - {Recovery.UNKNOWN},
    Recovery.UNKNOWN: set(Recovery),
}

# From harmless to harmful. What is known to diverge is worse than what might.
_SEVERITY = (
    Recovery.PRECISE,
    Recovery.REPEATING,
    Recovery.CONVERGENT,
    Recovery.GAP,
    Recovery.UNKNOWN,
    Recovery.DIVERGENT,
)


@dataclass(frozen=True)
class Seen:
    """What a reader of one sink saw."""

    sink: str
    rows: pa.Table
    key: tuple[str, ...] = ()  # by which later rows revise earlier ones; () where each row stands for itself
    order: str | None = None  # the column by which rows were delivered, e.g. `epoch`; no part of the row


@dataclass(frozen=True)
class Verdict:
    """The class of what was seen at one sink, with the first rows that differ and how often each does."""

    recovery: Recovery
    sink: str
    missing: pa.Table  # the last column is the count, `times`
    extra: pa.Table
    checked: str

    def to_json(self) -> Json:
        return {
            "recovery": self.recovery.value,
            "sink": self.sink,
            "missing": plain_rows(self.missing),
            "extra": plain_rows(self.extra),
            "checked": self.checked,
        }


def judge(expected: Seen, seen: Seen, skipped: Seen | None = None) -> Verdict:
    """The class of `seen`, where `expected` is what a run without failures gave, and `skipped` one that left out the
    same epochs."""
    _check_alike(expected, seen)
    compared = _compared(expected, seen)
    if isinstance(compared, str):
        verdict = Verdict(Recovery.DIVERGENT, seen.sink, _none_of(expected), _none_of(seen), compared)
    elif compared.is_precise:
        return compared.verdict(Recovery.PRECISE)
    else:
        verdict = compared.verdict(compared.rollback())
    if skipped is not None:
        _check_alike(skipped, seen)
        against = _compared(skipped, seen)
        if not isinstance(against, str) and against.is_precise:
            words = f"{against.words()}; compared with a run that left out the same epochs"
            return Verdict(Recovery.GAP, seen.sink, verdict.missing, verdict.extra, words)
    return verdict


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of the sinks of one run, the verdict that counts: the first of those that are worst."""
    return max(verdicts, key=lambda verdict: _SEVERITY.index(verdict.recovery))


@dataclass(frozen=True)
class _Comparison:
    """Two tables with the same columns, their rows numbered so that equal rows have equal numbers."""

    expected: Seen
    seen: Seen
    left: Integers
    right: Integers
    left_ranks: Integers
    right_ranks: Integers

    @property
    def counts(self) -> tuple[Integers, Integers]:
        size = int(max(self.left.max(initial=-1), self.right.max(initial=-1))) + 1
        wanted, found = (np.bincount(numbers, minlength=size) for numbers in (self.left, self.right))
        return wanted, found

    @property
    def is_precise(self) -> bool:
        wanted, found = self.counts
        return bool((wanted == found).all()) and len(self.overtaken()) == 0

    def rollback(self) -> Recovery:
        """The class of what is not precise."""
        wanted, found = self.counts
        repeated = (found >= wanted).all() and (wanted[found > 0] > 0).all() and (found > wanted).any()
        if not self.expected.key:
            return Recovery.REPEATING if repeated else Recovery.DIVERGENT
        ends = self._ends()
        return Recovery.REPEATING if repeated and ends is Recovery.CONVERGENT else ends

    def overtaken(self) -> Integers:
        """The seen rows that came after one of their key that they should come before. Needs the same multiset."""
        if not self.expected.key or self.expected.order is None:
            return np.zeros(0, np.int64)
        keys, _ = self._keys()
        left = np.lexsort((self.left_ranks, self.left))
        right = np.lexsort((self.right_ranks, self.right))
        key, wanted, came = keys[left], self.left_ranks[left], self.right_ranks[right]
        order = np.lexsort((came, wanted, key))
        key, came = key[order], came[order]
        late = (key[1:] == key[:-1]) & (came[:-1] > came[1:])
        rows: Integers = right[order][:-1][late]
        return rows

    def verdict(self, recovery: Recovery) -> Verdict:
        wanted, found = self.counts
        return Verdict(
            recovery,
            self.seen.sink,
            _first_rows(self.expected, self.left, wanted - found),
            _first_rows(self.seen, self.right, found - wanted),
            self.words(),
        )

    def words(self) -> str:
        """What was compared, and how many rows differ."""
        wanted, found = self.counts
        missing, extra = (int(np.maximum(more, 0).sum()) for more in (wanted - found, found - wanted))
        if missing or extra:
            return f"{_order_words(self.expected)}; {counted(missing, 'row')} missing, {extra:,} too many"
        late = self.overtaken()
        if not len(late):
            return _order_words(self.expected)
        [key] = plain_rows(self.seen.rows.select(self.expected.key).slice(int(late.min()), 1))
        where = ", ".join(f"{name} = {value}" for name, value in key.items())
        return f"order per key; {counted(len(late), 'row')} came too late, the first where {where}"

    def _keys(self) -> tuple[Integers, Integers]:
        names = list(self.expected.key)
        ranks = np.concatenate([self.left_ranks, self.right_ranks])
        return numbered(self.expected.rows.select(names), self.seen.rows.select(names), ranks)

    def _ends(self) -> Recovery:
        """Whether every key ends with the same row. Of several that came last together it is not known which did."""
        left_keys, right_keys = self._keys()
        wanted = _last_rows(left_keys, self.left, self.left_ranks)
        found = _last_rows(right_keys, self.right, self.right_ranks)
        if np.array_equal(wanted, found):
            return Recovery.CONVERGENT
        shared = wanted[:, np.isin(wanted[1], found[1])][0]
        keys = np.concatenate([left_keys, right_keys])
        return Recovery.UNKNOWN if np.isin(keys, shared).all() else Recovery.DIVERGENT


def _check_alike(expected: Seen, seen: Seen) -> None:
    if (expected.sink, expected.key, expected.order) != (seen.sink, seen.key, seen.order):
        raise ValueError(
            f"{seen.sink} by {seen.key} in the order of {seen.order} cannot be compared with "
            f"{expected.sink} by {expected.key} in the order of {expected.order}"
        )


def _compared(expected: Seen, seen: Seen) -> _Comparison | str:
    """The comparison, or why there can be none."""
    wanted, found = ({field.name: field.type for field in side.rows.schema} for side in (expected, seen))
    if wanted != found:
        return f"nothing but the columns, which differ: {_listed(wanted)} expected, {_listed(found)} seen"
    left_ranks, right_ranks = _ranks(expected), _ranks(seen)
    left, right = numbered(
        _bare(expected),
        _bare(seen).select(_bare(expected).column_names),
        np.concatenate([left_ranks, right_ranks]),
    )
    return _Comparison(expected, seen, left, right, left_ranks, right_ranks)


def _listed(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"


def _bare(seen: Seen) -> pa.Table:
    return seen.rows if seen.order is None else seen.rows.drop_columns([seen.order])


def _ranks(seen: Seen) -> Integers:
    """When each row came, as a number; all at once where no order is known."""
    if seen.order is None or seen.rows.num_rows == 0:
        return np.zeros(seen.rows.num_rows, np.int64)
    ranks: Integers = pc.rank(seen.rows[seen.order], tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _order_words(expected: Seen) -> str:
    return "order per key" if expected.key and expected.order is not None else "order unchecked"


def _last_rows(keys: Integers, numbers: Integers, ranks: Integers) -> Integers:
    """Distinct pairs of a key and the number of a row that came last for it, as two sorted columns."""
    latest = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
    np.maximum.at(latest, keys, ranks)
    last = ranks == latest[keys]
    return np.unique(np.stack([keys[last], numbers[last]]), axis=1)


def _first_rows(side: Seen, numbers: Integers, surplus: Integers) -> pa.Table:
    """The first distinct rows of which a side has more than the other, and how many more."""
    present, firsts = np.unique(numbers, return_index=True)
    differs = surplus[present] > 0
    places = firsts[differs]
    shown = np.argsort(places)[:ROWS_SHOWN_MAX]
    return _with_times(_bare(side).take(pa.array(places[shown])), surplus[present][differs][shown])


def _none_of(side: Seen) -> pa.Table:
    return _with_times(side.rows.slice(0, 0), np.zeros(0, np.int64))


def _with_times(rows: pa.Table, times: Integers) -> pa.Table:
    name = "times"
    while name in rows.column_names:
        name += "_"
    return rows.append_column(name, pa.array(times, pa.int64()))
