"""What a table sink makes of keys, types, names and tables that were there before, and of a database in use."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import SinkError
from holdfast.sinks.database import Epoch
from holdfast.sinks.sqlite import Sqlite
from holdfast.sinks.table import TableSink
from holdfast.testing.epochs import FLOW, expected, feed, publish_after, record
from unit.sinks.kinds import KINDS, SCHEMA, TABLE, query
from unit.sinks.test_every_sink_faults import child

PAIRS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])


class Fed:
    """A table and the epochs that it is given."""

    def __init__(self, home: Path, schema: pa.Schema, key: list[str] | None = None, table: str = "t") -> None:
        self.path = home / "out.db"
        self.home, self.schema = home, schema
        self.sink = TableSink(f"sqlite:///{self.path}", table, key, schema)
        self.epoch = 0

    def open(self) -> Fed:
        self.sink.open(FLOW, 0, 1)
        return self

    def give(self, *parts: list[tuple]) -> None:
        """Publish an epoch; every part is a segment."""
        paths = []
        for number, rows in enumerate(parts):
            columns = zip(*rows, strict=True) if rows else [[] for _ in self.schema]
            arrays = [
                pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)
            ]
            paths.append(self.home / f"{self.epoch}-{number}.parquet")
            pq.write_table(pa.table(arrays, schema=self.schema), paths[-1])
        self.sink.publish(record(self.epoch), paths)
        self.epoch += 1

    def rows(self, sql: str = "select * from t order by rowid") -> list[tuple]:
        return query(self.path, sql)

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


# Keys


def test_rows_with_a_key_replace_each_other_and_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"]).open()
    fed.give([(1, "x", 1), (None, "x", 2), (1, None, 3), (None, None, 4)])
    fed.give([(None, None, 40), (1, None, 30)], [(None, "x", 20), (2, None, 5)])
    assert fed.rows() == [(1, "x", 1), (None, "x", 20), (1, None, 30), (None, None, 40), (2, None, 5)]


def test_of_several_rows_with_one_key_in_an_epoch_the_last_stays(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"]).open()
    fed.give([(1, "x", 1), (None, None, 2)], [(1, "x", 3), (None, None, 4), (1, "x", 5)])
    assert sorted(fed.rows(), key=str) == [(1, "x", 5), (None, None, 4)]


def test_a_table_may_consist_of_its_key(tmp_path: Path) -> None:
    fed = Fed(tmp_path, pa.schema([("a", pa.int64())]), ["a"]).open()
    fed.give([(1,), (None,)])
    fed.give([(None,), (2,)])
    assert fed.rows() == [(1,), (None,), (2,)]


def test_without_a_key_rows_are_appended(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS).open()
    fed.give([(1, "x", 1), (1, "x", 1)])
    fed.give([(1, "x", 1)])
    assert fed.rows() == [(1, "x", 1)] * 3


keys = st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from([None, "", "a"]), st.integers(0, 99))
floats = st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf")])


@settings(max_examples=40)
@given(epochs=st.lists(st.lists(keys, max_size=8), max_size=5))
def test_upserts_equal_a_dictionary(
    epochs: list[list[tuple]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fed = Fed(tmp_path_factory.mktemp("t"), PAIRS, ["a", "b"]).open()
    model: dict[tuple, int] = {}
    for rows in epochs:
        fed.give(rows)
        model.update({(a, b): v for a, b, v in rows})
    assert {(a, b): v for a, b, v in fed.rows()} == model
    assert len(fed.rows()) == len(model)


@settings(max_examples=40)
@given(epochs=st.lists(st.lists(floats, max_size=4), max_size=4))
def test_float_keys_are_told_apart_as_spark_does(
    epochs: list[list[float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """NaN equals NaN, and -0.0 equals 0.0."""
    fed = Fed(tmp_path_factory.mktemp("t"), pa.schema([("a", pa.float64()), ("v", pa.int64())]), ["a"]).open()
    model: dict[object, int] = {}
    for number, values in enumerate(epochs):
        fed.give([(value, number) for value in values])
        model.update({"NaN" if value != value else value: number for value in values})
    assert dict(fed.rows()) == model
    assert len(fed.rows()) == len(model)


def test_an_upsert_finds_the_old_rows_by_the_index_however_many_there_are(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"]).open()
    fed.run(
        "insert into t with recursive n(i) as (select 0 union all select i + 1 from n where i < 999999) "
        "select i, 'x', 0 from n",
        "analyze",
    )
    database = Sqlite(f"sqlite:///{fed.path}", "t")
    rows = pa.table([[7, None], ["x", None], [1, 2]], schema=PAIRS)
    pq.write_table(rows, tmp_path / "rows.parquet")
    columns = [sa.Column("a", sa.BigInteger), sa.Column("b", sa.Text), sa.Column("v", sa.BigInteger)]
    epoch = Epoch([tmp_path / "rows.parquet"], PAIRS, sa.Table("t", sa.MetaData(), *columns), ("a", "b"))
    with database.staged(epoch) as staged, staged.transaction() as tx:
        update, insert = staged.statements()
        for statement, changed in ((update, 1), (insert, 1)):
            sql = str(statement.compile(dialect=database.dialect))
            steps = [step for *_, step in tx.exec_driver_sql(f"explain query plan {sql}")]
            assert any("SEARCH t USING" in step and "(a=? AND b=?)" in step for step in steps), steps
            assert not any(step.startswith("SCAN t") for step in steps), steps
            assert tx.execute(statement).rowcount == changed
    assert fed.rows("select * from t where v > 0") == [(7, "x", 1), (None, None, 2)]


def test_readers_who_look_for_a_key_use_the_same_index(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"]).open()
    ((*_, step),) = fed.rows("explain query plan select * from t where a = 1 and b = 'x'")
    assert step.startswith("SEARCH t USING INDEX")


# Types

UTC = dt.UTC
TYPES = [
    (pa.bool_(), [(True, 1), (False, 0)]),
    (pa.int8(), [(-128, -128), (127, 127)]),
    (pa.int16(), [(-(2**15), -(2**15)), (2**15 - 1, 2**15 - 1)]),
    (pa.int32(), [(-(2**31), -(2**31)), (2**31 - 1, 2**31 - 1)]),
    (pa.int64(), [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (2**53 + 1, 2**53 + 1)]),
    (pa.uint32(), [(2**32 - 1, 2**32 - 1)]),
    (pa.float32(), [(0.5, 0.5), (16777216.0, 16777216.0), (float("nan"), "NaN")]),
    (
        pa.float64(),
        [
            (0.1, 0.1),
            (5e-324, 5e-324),
            (1.7976931348623157e308, 1.7976931348623157e308),
            (float("inf"), float("inf")),
            (-float("inf"), -float("inf")),
            (float("nan"), "NaN"),
            (-0.0, 0.0),
            (3.0, 3.0),
        ],
    ),
    (pa.decimal128(5, 2), [(Decimal("1.50"), "1.50"), (Decimal("-0.01"), "-0.01"), (Decimal("0"), "0.00")]),
    (pa.decimal128(38, 0), [(Decimal("9" * 38), "9" * 38)]),
    (pa.decimal128(38, 18), [(Decimal("1"), "1." + "0" * 18), (Decimal("1E-18"), "1E-18")]),
    (
        pa.string(),
        [("", ""), ("a\0b", "a\0b"), ("grün 🙂", "grün 🙂"), ("12", "12"), ("1e3", "1e3"), ("NaN", "NaN")],
    ),
    (pa.binary(), [(b"", b""), (b"\0\xff", b"\0\xff")]),
    (pa.date32(), [(dt.date(1, 1, 1), "0001-01-01"), (dt.date(9999, 12, 31), "9999-12-31")]),
    (
        pa.timestamp("us", "UTC"),
        [
            (dt.datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC), "2026-03-29 01:30:00.000001"),
            (dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "1969-12-31 23:59:59.999999"),
        ],
    ),
    (pa.timestamp("us"), [(dt.datetime.fromisoformat("2026-03-29T02:30:00"), "2026-03-29 02:30:00.000000")]),
]


@pytest.mark.parametrize("key", [None, ["x"]], ids=["appended", "upserted"])
@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_a_value_is_stored_as_documented_also_as_a_key(
    tmp_path: Path, kind: pa.DataType, values: list[tuple], key: list[str] | None
) -> None:
    fed = Fed(tmp_path, pa.schema([("x", kind)]), key).open()
    for _ in range(1 if key is None else 2):
        fed.give([(value,) for value, _ in values], [(None,)])
    assert fed.rows() == [*((stored,) for _, stored in values), (None,)]
    kinds = fed.rows("select typeof(x) from t order by rowid")
    assert kinds == [(_kind_of(stored),) for _, stored in values] + [("null",)]


def _kind_of(stored: object) -> str:
    return {int: "integer", float: "real", str: "text", bytes: "blob"}[type(stored)]


def test_sqlalchemy_reads_dates_and_times_back_as_such(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32()), ("ts", pa.timestamp("us", "UTC")), ("b", pa.bool_())])
    fed = Fed(tmp_path, schema).open()
    fed.give([(dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), True)])
    with sa.create_engine(f"sqlite:///{fed.path}").connect() as connection:
        table = sa.Table("t", sa.MetaData(), autoload_with=connection)
        (row,) = connection.execute(sa.select(table)).all()
    assert row == (dt.date(2026, 1, 2), dt.datetime.fromisoformat("2026-01-02T03:04:05.000006"), True)


# Names

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(
    ['"', "'", "`", "[x]", "a.b", "%s", "%(x)s", ":x", "?", "select", "a b", "ROWID", "--", ";", "staged"]
)


@settings(max_examples=40)
@given(table=names, columns=st.lists(names, min_size=2, max_size=3, unique_by=lambda name: name.casefold()))
def test_names_are_quoted_whatever_is_in_them(
    table: str, columns: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if table.lower().startswith("sqlite_"):
        return
    schema = pa.schema([(name, pa.int64()) for name in columns])
    fed = Fed(tmp_path_factory.mktemp("t"), schema, columns[:1], table).open()
    fed.give([(1, *[2] * (len(columns) - 1))])
    fed.give([(1, *[3] * (len(columns) - 1))])
    again = Fed(fed.home, schema, columns[:1], table)
    assert again.sink.open(FLOW, 0, 2) == record(1)
    quoted = '"' + table.replace('"', '""') + '"'
    assert fed.rows(f"select * from {quoted}") == [(1, *[3] * (len(columns) - 1))]
    described = fed.rows(f"select name from pragma_table_info('{table.replace(chr(39), chr(39) * 2)}')")
    assert described == [(name,) for name in columns]


def test_two_tables_of_one_database_have_records_of_their_own(tmp_path: Path) -> None:
    one, two = Fed(tmp_path, PAIRS, table="one"), Fed(tmp_path, PAIRS, ["a"], table="two")
    one.open().give([(1, "x", 1)])
    two.open().give([(2, "y", 2)])
    two.give([])
    assert one.rows("select target, epoch, upsert_key from holdfast_sinks order by target") == [
        ("one", 0, None),
        ("two", 1, '["a"]'),
    ]
    assert one.rows("select * from one") == [(1, "x", 1)]


def test_a_name_in_other_letters_is_the_same_table_as_it_is_for_sqlite(tmp_path: Path) -> None:
    Fed(tmp_path, PAIRS, table="Totals").open().give([(1, "x", 1)])
    assert Fed(tmp_path, PAIRS, table="totals").sink.open(FLOW, 0, 2) == record(0)


# Tables that were there before


def test_a_table_that_is_there_keeps_its_rows_and_its_own_columns(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"])
    fed.run(
        "create table t (id integer primary key, v bigint, b text, a int, note text default 'new', unique (b, a))",
        "insert into t (a, b, v, note) values (1, 'x', 0, 'mine')",
    )
    fed.open().give([(1, "x", 10), (2, "y", 20)])
    assert fed.rows("select a, b, v, note from t") == [(1, "x", 10, "mine"), (2, "y", 20, "new")]
    assert fed.rows("select count(*) from pragma_index_list('t')") == [(1,)]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("create table t (a bigint, b text)", r"has no column 'v'.*Add it as BIGINT"),
        ("create table t (a bigint, b integer, v bigint)", r"column 'b' as INTEGER, .*type string.*as TEXT"),
        ("create table t (a real, b text, v bigint)", r"column 'a' as REAL, .*type int64.*as BIGINT"),
        ("create table t (a bigint, b text, v bigint, w int not null)", "needs a value for w"),
    ],
)
def test_a_table_that_cannot_hold_the_rows_is_refused_with_column_and_types(
    tmp_path: Path, ddl: str, why: str
) -> None:
    fed = Fed(tmp_path, PAIRS)
    fed.run(ddl)
    with pytest.raises(SinkError, match=why):
        fed.open()
    assert fed.rows("select count(*) from sqlite_master where name = 'holdfast_sinks'") == [(0,)]


def test_a_table_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS, ["a", "b"])
    fed.run("create table t (a bigint, b text, v bigint)", "insert into t values (1, 'x', 1), (1, 'x', 2)")
    with pytest.raises(SinkError, match="UNIQUE constraint failed"):
        fed.open()


def test_rows_that_break_a_constraint_of_the_table_stop_and_pass_once_it_is_gone(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS)
    fed.run("create table t (a bigint, b text, v bigint)", "create unique index mine on t (v)")
    fed.open().give([(1, "x", 1)])
    with pytest.raises(SinkError, match="UNIQUE constraint failed") as caught:
        fed.give([(2, "y", 2), (2, "y", 1)])
    assert "drop it" in str(caught.value.hint)
    assert fed.rows() == [(1, "x", 1)]
    fed.run("drop index mine")
    fed.give([(2, "y", 2), (2, "y", 1)])
    assert len(fed.rows()) == 3


def test_another_key_for_the_same_table_is_refused(tmp_path: Path) -> None:
    Fed(tmp_path, PAIRS, ["a"]).open()
    for key in (["b"], ["a", "b"], None):
        with pytest.raises(SinkError, match=r"was written with key=\['a'\]"):
            Fed(tmp_path, PAIRS, key).open()


def test_a_table_that_is_gone_stops_with_the_ways_out(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS).open()
    fed.give([(1, "x", 1)])
    fed.run("drop table t")
    with pytest.raises(SinkError, match="no such table"):
        fed.give([(1, "x", 1)])
    with pytest.raises(SinkError, match="published up to epoch 0") as caught:
        fed.open()
    assert "holdfast_sinks" in str(caught.value.hint)


def test_a_record_that_is_gone_stops_the_sink(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS).open()
    fed.run("delete from holdfast_sinks")
    with pytest.raises(SinkError, match="is gone from holdfast_sinks"):
        fed.give([(1, "x", 1)])


def test_segments_of_earlier_code_are_not_guessed_at(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS).open()
    fed.schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(SinkError, match="other columns than the stage has now") as caught:
        fed.give([(1, "x")])
    assert "code that wrote it" in str(caught.value.hint)
    assert fed.rows() == []


# A database in use


@pytest.mark.usefixtures("impatient")
def test_a_database_that_another_writer_holds_is_waited_for_then_said_to_heal(tmp_path: Path) -> None:
    fed = Fed(tmp_path, PAIRS).open()
    with closing(sqlite3.connect(fed.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        for attempt in (lambda: fed.give([(1, "x", 1)]), fed.open):
            with pytest.raises(SinkError, match="locked") as caught:
                attempt()
            assert caught.value.heals
        other.execute("rollback")
    assert os.listdir(tmp_path / ".out.db.holdfast") == []
    fed.open().give([(1, "x", 1)])
    assert fed.rows() == [(1, "x", 1)]


def test_readers_see_whole_epochs_while_rows_are_staged(tmp_path: Path) -> None:
    """Staging is a file of its own: a reader inside a long transaction neither waits nor is waited for until then."""
    fed = Fed(tmp_path, PAIRS).open()
    fed.run("pragma journal_mode = wal")
    fed.give([(1, "x", 1)])
    with closing(sqlite3.connect(fed.path, isolation_level=None)) as reader:
        reader.execute("begin")
        assert reader.execute("select count(*) from t").fetchone() == (1,)
        fed.give([(2, "x", 1)])
        assert reader.execute("select count(*) from t").fetchone() == (1,)
        reader.execute("commit")
        assert reader.execute("select count(*) from t").fetchone() == (2,)


def test_a_process_stopped_inside_its_transaction_holds_the_table_until_it_goes_on_or_ends(
    tmp_path: Path, directory: Path, impatient: None
) -> None:
    kind, target = KINDS["upserted"], tmp_path / "out"
    for generation, sign in ((1, signal.SIGKILL), (3, signal.SIGCONT)):
        with child(kind, target, generation, directory, STOP_AT="sink.after_publish") as stopped:
            os.waitpid(stopped.pid, os.WUNTRACED)
            with pytest.raises(SinkError, match="locked") as caught:
                kind.sink(target).open(FLOW, 0, generation + 1)
            assert caught.value.heals
            stopped.send_signal(sign)
            stopped.communicate(timeout=60)
        if sign == signal.SIGKILL:
            assert kind.visible(target) == []
    sink = kind.sink(target)
    last = sink.open(FLOW, 0, 4)
    publish_after(sink, last, directory, generation=4)
    assert kind.visible(target) == expected()


def test_a_file_that_is_no_database_and_a_directory_that_cannot_be_are_named(tmp_path: Path) -> None:
    (tmp_path / "out.db").write_bytes(b"this is not a database, but it is long enough to be read as one" * 99)
    with pytest.raises(SinkError, match="not a database") as caught:
        Fed(tmp_path, PAIRS).open()
    assert not caught.value.heals
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        Fed(tmp_path / "file", PAIRS).open()


def test_the_directory_of_the_database_is_made(tmp_path: Path) -> None:
    sink = TableSink(f"sqlite:///{tmp_path}/new/deep/out.db", TABLE, None, SCHEMA)
    assert sink.open(FLOW, 0, 1) is None


def test_what_a_killed_process_left_in_staging_is_cleared_by_the_next_opening(
    tmp_path: Path, directory: Path
) -> None:
    kind, target = KINDS["appended"], tmp_path / "out"
    with child(kind, target, 1, directory, HOLDFAST_CRASH="sink.after_stage:1") as killed:
        killed.wait(timeout=60)
    assert len(kind.leftovers(target)) == 1
    other = TableSink(f"sqlite:///{target}", "other", None, SCHEMA)
    other.open(FLOW, 0, 1)
    assert len(kind.leftovers(target)) == 1
    feed(kind.sink(target), directory, generation=2)
    assert kind.leftovers(target) == []
