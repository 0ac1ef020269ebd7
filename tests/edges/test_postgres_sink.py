"""Tables of PostgreSQL: the conformance suite on a real server, and what only this database does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql

from edges.tables import PAIRS, Fed, read, run, staged
from holdfast.core.errors import PlanError, SinkError
from holdfast.sinks.table import TableSink
from holdfast.testing import SinkSuite, Target
from holdfast.testing.epochs import FLOW, record


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[str]:
    """A database for all tests of this file; each takes a schema of its own."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def schema(server: str) -> str:
    """A schema of the test's own."""
    return new_schema(server)


def new_schema(url: str) -> str:
    name = f"s_{uuid.uuid4().hex[:12]}"
    run(url, f"create schema {name}")
    return name


class TestAppended(SinkSuite):
    nested = ()
    tears = 6
    key: tuple[str, ...] | None = None

    @pytest.fixture(autouse=True)
    def _on(self, server: str) -> None:
        self.url = server

    def target(self, schema: pa.Schema, place: Path) -> Target:
        where = f"{new_schema(self.url)}.out"
        return Target(
            lambda: TableSink(self.url, where, self.key, schema), lambda: read(self.url, where, schema)
        )


class TestUpserted(TestAppended):
    def target(self, schema: pa.Schema, place: Path) -> Target:
        self.key = (schema.names[0],)
        return super().target(schema, place)


# Keys


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_with_a_key_replace_each_other_and_null_is_a_key_like_any_other(
    tmp_path: Path, server: str, schema: str, parts: int
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()
    for number in range(parts):
        fed.give([(1, "x", number), (None, "x", 2), (1, None, 3)], [(None, None, 4)])
    fed.give([(None, None, 40), (1, None, 30)], [(None, "x", 20), (2, None, 5)])
    assert fed.rows() == sorted(
        [(1, "x", parts - 1), (None, "x", 20), (1, None, 30), (None, None, 40), (2, None, 5)], key=repr
    )


def test_of_several_rows_with_one_key_in_an_epoch_the_last_stays(
    tmp_path: Path, server: str, schema: str
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()
    fed.give([(1, "x", 1), (None, None, 2)], [(1, "x", 3), (None, None, 4), (1, "x", 5)])
    assert fed.rows() == [(1, "x", 5), (None, None, 4)]


def test_a_table_may_consist_of_its_key_and_have_a_column_called_ordinal(
    tmp_path: Path, server: str, schema: str
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", pa.schema([("ordinal", pa.int64())]), ["ordinal"]).open()
    fed.give([(1,), (None,)])
    fed.give([(None,), (2,)])
    assert fed.rows() == [(1,), (2,), (None,)]


def test_nan_equals_nan_and_minus_zero_equals_zero_in_a_key(tmp_path: Path, server: str, schema: str) -> None:
    columns = pa.schema([("a", pa.float64()), ("v", pa.int64())])
    fed = Fed(tmp_path, server, f"{schema}.t", columns, ["a"]).open()
    fed.give([(float("nan"), 1), (0.0, 2), (float("inf"), 3)])
    fed.give([(float("nan"), 10), (-0.0, 20), (float("-inf"), 4)])
    assert fed.rows("select a::text, v from {}") == [
        ("-Infinity", 4),
        ("0", 20),
        ("Infinity", 3),
        ("NaN", 10),
    ]


def test_an_upsert_finds_the_old_rows_by_the_index_however_many_there_are(
    tmp_path: Path, server: str, schema: str
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()
    run(
        server,
        f"insert into {schema}.t select i, 'x', 0 from generate_series(1, 100000) i",
        f"analyze {schema}.t",
    )
    before = fed.rows("select seq_scan from pg_stat_user_tables where relid = '{}'::regclass")
    fed.give([(7, "x", 1), (None, None, 2)])
    assert fed.rows("select * from {} where v > 0") == [(7, "x", 1), (None, None, 2)]
    with psycopg.connect(server) as session:
        session.execute("select pg_stat_force_next_flush()")
    assert (
        fed.rows("select seq_scan from pg_stat_user_tables where relid = '{}'::regclass")[0][0]
        <= before[0][0] + 1
    )


# Types

TYPES = [
    (pa.bool_(), "boolean", [True, False]),
    (pa.int8(), "smallint", [-128, 127]),
    (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    (pa.uint8(), "smallint", [255]),
    (pa.uint16(), "integer", [2**16 - 1]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    (pa.uint32(), "bigint", [2**32 - 1]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    (pa.uint64(), "numeric(20,0)", [2**64 - 1]),
    (pa.float32(), "real", [0.5, float("inf")]),
    (pa.float64(), "double precision", [0.1, 5e-324, 1.7976931348623157e308, float("-inf")]),
    (pa.decimal128(5, 2), "numeric(5,2)", ["1.50", "-0.01", "0.00"]),
    (pa.decimal128(38, 0), "numeric(38,0)", ["9" * 38]),
    (pa.decimal128(38, 38), "numeric(38,38)", ["0." + "0" * 37 + "1"]),
    (pa.string(), "text", ["", "grün 🙂", "\\N", "12"]),
    (pa.large_string(), "text", ["long"]),
    (pa.dictionary(pa.int32(), pa.string()), "text", ["one", "two"]),
    (pa.binary(), "bytea", [b"", b"\0\xff"]),
    (pa.date32(), "date", ["0001-01-01", "9999-12-31"]),
    (pa.timestamp("us", "UTC"), "timestamp with time zone", ["1969-12-31 23:59:59.999999+00", "9999-12-31 23:59:59.999999+00"]),
    (pa.timestamp("us"), "timestamp without time zone", ["2026-03-29 02:30:00.000001"]),
]  # fmt: skip


@pytest.mark.parametrize("key", [None, ["n"]], ids=["appended", "upserted"])
def test_values_of_every_type_are_stored_as_documented(
    tmp_path: Path, server: str, schema: str, key: list[str] | None
) -> None:
    arrays = [as_array(kind, values) for kind, _, values in TYPES]
    most = max(map(len, arrays))
    padded = {f"x{i}": pa.concat_arrays([a, pa.nulls(most - len(a), a.type)]) for i, a in enumerate(arrays)}
    rows = pa.table({"n": pa.array(range(most)), **padded})
    fed = Fed(tmp_path, server, f"{schema}.t", rows.schema, key).open()
    pq.write_table(rows, tmp_path / "t.parquet")
    fed.sink.publish(record(0), [tmp_path / "t.parquet"])
    types = run(
        server,
        f"select format_type(atttypid, atttypmod) from pg_attribute where attrelid = '{schema}.t'::regclass "
        "and attnum > 1 order by attnum",
    )
    assert [name for (name,) in types] == [declared for _, declared, _ in TYPES]
    for number, (kind, _, values) in enumerate(TYPES):
        as_text = "::text" if isinstance(values[0], str) else ""
        found = run(
            server, f"select x{number}{as_text} from {schema}.t where x{number} is not null order by n"
        )
        assert [repr(type(values[0])(value)) for (value,) in found] == list(map(repr, values)), kind


def as_array(kind: pa.DataType, values: list) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values).dictionary_encode()
    return pa.array(values).cast(kind) if isinstance(values[0], str) else pa.array(values, kind)


WIDER = [
    ("bigint", pa.array([7], pa.int16()), "7"),
    ("numeric(12,2)", pa.array([7], pa.int32()), "7.00"),
    ("numeric", pa.array(["1.250"]).cast(pa.decimal128(10, 3)), "1.25"),
    ("double precision", pa.array([0.5], pa.float32()), "0.5"),
    ("varchar(5)", pa.array(["abcde"]), "abcde"),
    ("json", pa.array(['{"b":  2}']), '{"b":  2}'),
    ("jsonb", pa.array(['{"b":  2, "a": 1}']), '{"a": 1, "b": 2}'),
]


@pytest.mark.parametrize("key", [None, ["x0"]], ids=["appended", "upserted"])
def test_wider_types_of_a_table_that_is_there_take_the_values(
    tmp_path: Path, server: str, schema: str, key: list[str] | None
) -> None:
    declared = ", ".join(f"x{number} {kind}" for number, (kind, *_) in enumerate(WIDER))
    run(server, f"create table {schema}.t ({declared})")
    rows = pa.table(
        {f"x{i}": pa.concat_arrays([a, pa.nulls(1, a.type)]) for i, (_, a, _) in enumerate(WIDER)}
    )
    fed = Fed(tmp_path, server, f"{schema}.t", rows.schema, key).open()
    pq.write_table(rows, tmp_path / "t.parquet")
    fed.sink.publish(record(0), [tmp_path / "t.parquet"])
    texts = ", ".join(f"x{number}::text" for number in range(len(WIDER)))
    stored = run(server, f"select {texts} from {schema}.t order by x0")
    assert stored == [tuple(text for *_, text in WIDER), (None,) * len(WIDER)]


@pytest.mark.parametrize("key", [None, ["a"]], ids=["appended", "upserted"])
def test_a_nul_in_text_is_an_error_that_names_the_column(
    tmp_path: Path, server: str, schema: str, key: list[str] | None
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, key).open()
    with pytest.raises(SinkError, match="the column 'b' has text with a NUL character") as caught:
        fed.give([(1, "x", 1), (2, "a\0b", 2)])
    assert "translate" in str(caught.value.hint)
    assert not caught.value.heals
    assert fed.rows() == []
    fed.give([(1, "x", 1)])
    assert fed.rows() == [(1, "x", 1)]


# Names


@pytest.mark.parametrize(
    ("where", "quoted"),
    [
        ('a "quoted" name', '"a ""quoted"" name"'),
        ('"with.dot"', '"with.dot"'),
        ("select", '"select"'),
        ("MixedCase", '"MixedCase"'),
        ("Ünï %s :x $1 ; -- cödé", '"Ünï %s :x $1 ; -- cödé"'),
    ],
)
def test_names_are_quoted_whatever_is_in_them(
    tmp_path: Path, server: str, schema: str, where: str, quoted: str
) -> None:
    key = ['k"ey'] if '"' in where else None
    columns = pa.schema([('k"ey', pa.int64()), ("%s ($1) :x", pa.int64())])
    fed = Fed(tmp_path, server, f"{schema}.{where}", columns, key).open()
    fed.give([(1, 2)])
    again = Fed(tmp_path, server, f"{schema}.{where}", columns, key)
    assert again.sink.open(FLOW, 0, 2) == record(0)
    with psycopg.connect(server) as session:
        query = sql.SQL("select * from {}.").format(sql.Identifier(schema)) + sql.SQL(
            quoted.replace("%", "%%")
        )
        assert session.execute(query.as_string(session).replace("%%", "%")).fetchall() == [(1, 2)]


@pytest.mark.parametrize(
    ("where", "column", "why"),
    [
        ("t" * 64, "a", "64 bytes long"),
        ("ü" * 32, "a", "64 bytes long"),
        ("s" * 64 + ".t", "a", "64 bytes long"),
        ("t", "c" * 64, "64 bytes long"),
        ("t", "ctid", "'ctid' cannot be a name"),
        ("public.holdfast_sinks", "a", "'holdfast_sinks' cannot be a name"),
        ("a.b.c", "a", "names no table"),
        (".t", "a", "names no table"),
    ],
)
def test_names_that_postgresql_cannot_have_are_refused_before_anything_runs(
    where: str, column: str, why: str
) -> None:
    with pytest.raises(PlanError, match=why):
        TableSink("postgresql://nobody@nowhere.invalid/none", where, None, pa.schema([(column, pa.int64())]))


def test_types_that_it_cannot_hold_are_refused_with_a_way_out() -> None:
    columns = pa.schema([("ks", pa.list_(pa.int64()))])
    with pytest.raises(PlanError, match="cannot store the column 'ks'") as caught:
        TableSink("postgresql://nobody@nowhere.invalid/none", "t", None, columns)
    assert "to_json" in str(caught.value.hint)


def test_a_table_is_the_same_by_its_schema_or_by_the_search_path(tmp_path: Path, server: str) -> None:
    Fed(tmp_path, server, "by_path", PAIRS).open().give([(1, "x", 1)])
    again = TableSink(server.replace("postgresql:", "postgresql+psycopg:"), "public.by_path", None, PAIRS)
    assert again.open(FLOW, 0, 2) == record(0)


# Tables that were there before


def test_a_table_that_is_there_keeps_its_rows_and_its_own_columns(
    tmp_path: Path, server: str, schema: str
) -> None:
    run(
        server,
        f"create table {schema}.t (id bigint generated always as identity, v bigint, b text, a bigint, "
        "note text not null default 'new', primary key (b, a))",
        f"insert into {schema}.t (a, b, v, note) values (1, 'x', 0, 'mine')",
    )
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()
    fed.give([(1, "x", 10), (2, "y", 20)])
    assert fed.rows("select a, b, v, note from {}") == [(1, "x", 10, "mine"), (2, "y", 20, "new")]
    assert run(
        server, f"select count(*) from pg_indexes where schemaname = '{schema}' and tablename = 't'"
    ) == [(1,)]


def test_an_index_that_takes_nulls_for_different_is_not_enough(
    tmp_path: Path, server: str, schema: str
) -> None:
    run(server, f"create table {schema}.t (a bigint, b text, v bigint, unique (a, b))")
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()
    fed.give([(None, "x", 1)])
    fed.give([(None, "x", 2)])
    assert fed.rows() == [(None, "x", 2)]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("(a bigint, b text)", r"has no column 'v'.*Add it as BIGINT"),
        ("(a bigint, b bigint, v bigint)", r"column 'b' as bigint, .*type string.*as TEXT"),
        ("(a integer, b text, v bigint)", r"column 'a' as integer, .*type int64.*as BIGINT"),
        ("(a bigint, b text, v bigint, w int not null)", "needs a value for w"),
    ],
)
def test_a_table_that_cannot_hold_the_rows_is_refused_with_column_and_types(
    tmp_path: Path, server: str, schema: str, ddl: str, why: str
) -> None:
    run(server, f"create table {schema}.t {ddl}")
    with pytest.raises(SinkError, match=why):
        Fed(tmp_path, server, f"{schema}.t", PAIRS).open()
    assert run(server, f"select to_regclass('{schema}.holdfast_sinks')") == [(None,)]


def test_a_table_with_a_key_twice_is_refused(tmp_path: Path, server: str, schema: str) -> None:
    run(
        server,
        f"create table {schema}.t (a bigint, b text, v bigint)",
        f"insert into {schema}.t values (1, null, 1), (1, null, 2)",
    )
    with pytest.raises(SinkError, match="could not create unique index"):
        Fed(tmp_path, server, f"{schema}.t", PAIRS, ["a", "b"]).open()


@pytest.mark.parametrize("key", [None, ["a"]], ids=["appended", "upserted"])
def test_rows_that_break_a_constraint_stop_and_pass_once_it_is_gone(
    tmp_path: Path, server: str, schema: str, key: list[str] | None
) -> None:
    run(server, f"create table {schema}.t (a bigint, b text, v bigint constraint small check (v < 9))")
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS, key).open()
    with pytest.raises(SinkError, match="violates check constraint") as caught:
        fed.give([(1, "x", 1), (2, "y", 10)])
    assert "drop it" in str(caught.value.hint)
    assert fed.rows() == []
    run(server, f"alter table {schema}.t drop constraint small")
    fed.give([(1, "x", 1), (2, "y", 10)])
    assert len(fed.rows()) == 2
    assert staged(server) == 0


def test_a_table_or_a_record_or_a_column_that_is_gone_stops_with_the_ways_out(
    tmp_path: Path, server: str, schema: str
) -> None:
    fed = Fed(tmp_path, server, f"{schema}.t", PAIRS).open()
    fed.give([(1, "x", 1)])
    run(server, f"alter table {schema}.t drop column v")
    with pytest.raises(SinkError, match="has no column 'v' for int64 any more"):
        fed.give([(1, "x", 1)])
    run(server, f"drop table {schema}.t")
    with pytest.raises(SinkError, match="published up to epoch 0") as caught:
        fed.open()
    assert "holdfast_sinks" in str(caught.value.hint)
    run(server, f"delete from {schema}.holdfast_sinks")
    fed.epoch = 0
    fed.open()
    run(server, f"delete from {schema}.holdfast_sinks")
    with pytest.raises(SinkError, match="is gone from holdfast_sinks"):
        fed.give([(1, "x", 1)])


def test_a_schema_that_is_not_there_is_named(tmp_path: Path, server: str) -> None:
    with pytest.raises(SinkError, match='schema "nowhere" does not exist') as caught:
        Fed(tmp_path, server, "nowhere.t", PAIRS).open()
    assert "Create the schema" in str(caught.value.hint)
