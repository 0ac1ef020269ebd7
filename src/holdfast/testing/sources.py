"""What every source must do: give what is new once, and the same rows again when asked.

`spark` is a fixture of yours: a session to read with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.ledger.inputs import Item
from holdfast.sources.contract import NOTHING, Limits, Source, Taken

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


@dataclass(frozen=True)
class Origin:
    """A new, empty origin of rows of SCHEMA: how a process gets a source that reads it, and how rows get there."""

    source: Callable[[], Source]
    put: Callable[[pa.Table], None]


class SourceSuite:
    """Inherit from it, and say what `origin` is."""

    texts: tuple[str | None, ...] = (None, "", "a,b\t'c'\n\"d\"", "\U0001f40b", "x" * 100_000)

    def origin(self, place: Path) -> Origin:
        """A new, empty origin; `place` is a directory of the test's own."""
        raise NotImplementedError

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Origin:
        """An origin without rows."""
        return self.origin(tmp_path / "origin")

    def test_without_rows_there_is_nothing_new(self, stream: Origin) -> None:
        assert list(stream.source().next(NOTHING, Limits())) == []

    def test_reading_nothing_gives_no_rows_in_the_columns_of_the_schema(
        self, stream: Origin, spark: SparkSession
    ) -> None:
        source = stream.source()
        frame = source.read(spark, [])
        assert frame.columns == source.schema().names
        assert frame.count() == 0

    def test_every_row_comes_once_and_in_as_many_looks_as_it_likes(
        self, stream: Origin, spark: SparkSession
    ) -> None:
        source, taken, seen = stream.source(), NOTHING, pa.table([[], []], schema=SCHEMA)
        for start in (0, 10, 20):
            stream.put(_numbered(start, 10))
            for _ in range(10):
                items = list(source.next(taken, Limits()))
                taken = _after(taken, items)
                seen = pa.concat_tables([seen, self._read(spark, source, items)])
                if seen.num_rows >= start + 10:
                    break
        assert sorted(seen["n"].to_pylist()) == list(range(30))
        assert list(source.next(taken, Limits())) == []

    def test_another_process_reads_the_same_rows_of_the_same_items(
        self, stream: Origin, spark: SparkSession
    ) -> None:
        stream.put(_numbered(0, 50))
        first = stream.source()
        items = [_written_down(item) for item in first.next(NOTHING, Limits())]
        assert items
        before = _sorted(self._read(spark, first, items))
        stream.put(_numbered(50, 5))  # what comes later is no part of them
        assert _sorted(self._read(spark, stream.source(), items)).equals(before)
        assert _sorted(self._read(spark, first, items)).equals(before)

    def test_items_read_apart_hold_the_rows_of_items_read_together(
        self, stream: Origin, spark: SparkSession
    ) -> None:
        items: list[Item] = []
        source, taken = stream.source(), NOTHING
        for start in (0, 10, 20):
            stream.put(_numbered(start, 10))
            found = list(source.next(taken, Limits()))
            taken, items = _after(taken, found), [*items, *found]
        apart = pa.concat_tables([self._read(spark, source, [item]) for item in items])
        assert _sorted(apart).equals(_sorted(self._read(spark, source, items)))

    def test_a_source_that_is_new_goes_on_after_what_was_taken(
        self, stream: Origin, spark: SparkSession
    ) -> None:
        stream.put(_numbered(0, 10))
        taken = _after(NOTHING, [_written_down(i) for i in stream.source().next(NOTHING, Limits())])
        stream.put(_numbered(10, 10))
        source = stream.source()
        rows = self._read(spark, source, list(source.next(taken, Limits())))
        assert sorted(rows["n"].to_pylist()) == list(range(10, 20))

    def test_identities_differ_and_sizes_are_told(self, stream: Origin) -> None:
        source, taken = stream.source(), NOTHING
        for start in (0, 10):
            stream.put(_numbered(start, 10))
            items = list(source.next(taken, Limits()))
            assert all(item.rows is None or item.rows >= 0 for item in items)
            assert all(item.bytes >= 0 for item in items)
            assert not {item.identity for item in items} & taken.known
            taken = _after(taken, items)

    def test_what_is_let_go_takes_nothing_else_with_it(self, stream: Origin, spark: SparkSession) -> None:
        source = stream.source()
        stream.put(_numbered(0, 10))
        first = list(source.next(NOTHING, Limits()))
        taken = _after(NOTHING, first)
        stream.put(_numbered(10, 10))
        second = list(source.next(taken, Limits()))
        source.commit(first[-1])
        source.commit(first[-1])  # after a crash it is said again
        assert sorted(self._read(spark, source, second)["n"].to_pylist()) == list(range(10, 20))

    def test_hostile_strings_are_strings(self, stream: Origin, spark: SparkSession) -> None:
        stream.put(pa.table([range(len(self.texts)), self.texts], schema=SCHEMA))
        source = stream.source()
        rows = self._read(spark, source, list(source.next(NOTHING, Limits())))
        assert _sorted(rows)["text"].to_pylist() == list(self.texts)

    def _read(self, spark: SparkSession, source: Source, items: Sequence[Item]) -> pa.Table:
        return source.read(spark, items).select(*SCHEMA.names).toArrow().cast(SCHEMA)


def _numbered(start: int, rows: int) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table([numbers, [f"t{n}" for n in numbers]], schema=SCHEMA)


def _after(taken: Taken, items: Sequence[Item]) -> Taken:
    """What is known once items were taken, and read."""
    known = taken.known | {item.identity for item in items}
    return Taken(len(known), items[-1] if items else taken.last, 0, known)


def _written_down(item: Item) -> Item:
    """As the ledger gives it back."""
    return replace(item, body=json.loads(json.dumps(item.body)))


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by("n").combine_chunks()
