"""Streams enriched with tables: Spark's batch join on the same data, version by version."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from batch import assert_same_rows, plans, read_sink, write_files
from event_time import at
from holdfast.core import crashpoints, limits
from holdfast.core.crashpoints import NO_ORDERS, Orders
from holdfast.core.errors import HoldfastError, InputError, PlanError, StorageError
from holdfast.flow.flow import Stream
from holdfast.flow.planner import plan
from holdfast.ledger import schema
from holdfast.ledger.ledger import reading
from holdfast.spark.bind import bind
from holdfast.spark.schemas import parse_schema
from holdfast.spark.session import epoch_settings

SCHEMA = "k bigint, x double, d decimal(10,2), s string"
ARROW = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(10, 2)), ("s", pa.string())])

row = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(-2, 2),
        "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "d": st.none() | st.sampled_from([Decimal("1.10"), Decimal("-0.01"), Decimal("99.99")]),
        "s": st.none() | st.sampled_from(["", "a", "b", "ß"]),
    }
)

# By name, the key columns; the rows of a table have each key once.
KEYS: dict[str, tuple[str, ...]] = {"k": ("k",), "x": ("x",), "d": ("d",), "all": ("k", "x", "d", "s")}


def key_of(one: Mapping[str, object], keys: Sequence[str]) -> tuple[object, ...]:
    """As Spark tells keys apart: NaN is NaN, and -0.0 is 0.0."""
    return tuple(
        "NaN" if isinstance(v, float) and math.isnan(v) else v + 0.0 if isinstance(v, float) else v
        for v in (one[key] for key in keys)
    )


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])
@given(files=st.lists(st.lists(row, max_size=8), max_size=3), rows=st.lists(row, max_size=12))
@pytest.mark.timeout(300)
def test_any_enriched_stream_equals_a_batch_join(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[dict[str, object]]],
    rows: list[dict[str, object]],
) -> None:
    """All keys and both kinds in one flow, a sink each: what is costly is the run."""
    home = tmp_path_factory.mktemp("enrich")
    tables = [pa.Table.from_pylist(part, schema=ARROW) for part in files]
    write_files(home / "in", tables)
    everything = spark.createDataFrame(pa.concat_tables([ARROW.empty_table(), *tables]).combine_chunks())
    flow = hf.Flow("enrich")
    stream = flow.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    expected: dict[str, DataFrame] = {}
    for name, keys in KEYS.items():
        # With null keys there may be several: they are nobody's partner.
        unique = list({(*key_of(one, keys), *([i] if None in key_of(one, keys) else [])): one
                       for i, one in enumerate(rows)}.values())  # fmt: skip
        table = pa.Table.from_pylist([{**one, "v": i} for i, one in enumerate(unique)],
                                     schema=ARROW.append(pa.field("v", pa.int64())))  # fmt: skip
        half = len(unique) // 2
        write_files(home / name, [table.slice(0, half), table.slice(half)])
        for how in ("left", "inner"):
            described = hf.files(str(home / name), schema=f"{SCHEMA}, v bigint")
            enriched = stream.enrich(described, on=list(keys), how=how, prefix="t_")
            enriched.named(f"{name}-{how}").to(hf.parquet(str(home / f"out-{name}-{how}")))
            right = spark.createDataFrame(table).select(
                *(f.col(c).alias(f"t_{c}") for c in table.column_names)
            )
            on = [everything[key] == right[f"t_{key}"] for key in keys]
            expected[f"{name}-{how}"] = everything.join(right, on, how).drop(*(f"t_{key}" for key in keys))
    flow.run(home / "work", until_idle=True, spark=spark)
    for name, same in expected.items():
        found = written(spark, home / f"out-{name}", same)
        assert found.schema.simpleString() == same.schema.simpleString(), name
        assert_same_rows(as_text(found), as_text(same))


def written(spark: SparkSession, out: Path, like: DataFrame) -> DataFrame:
    if not any(out.glob("epoch=*/*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(out)).select(*like.columns)


def as_text(df: DataFrame) -> DataFrame:
    """Values as text: NaN and null are told apart, -0.0 and 0.0 too."""
    return df.select(*(f.col(name).cast("string").alias(name) for name in df.columns))


class Shop:
    """Orders that are enriched with countries, run by run."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.home, self.spark = home, spark
        self.orders = 0
        (home / "in").mkdir()
        (home / "countries").mkdir()

    @property
    def work(self) -> Path:
        return self.home / "work"

    def order(self, *countries: str | None) -> None:
        table = pa.table({"id": [self.orders + i for i in range(len(countries))], "country": list(countries)})
        write_files(self.home / "in", [table.cast(pa.schema([("id", pa.int64()), ("country", pa.string())]))],
                    first=self.orders)  # fmt: skip
        self.orders += len(countries)

    def countries(self, **names: str) -> None:
        """Replace the table as a careful producer would."""
        aside = self.home / "aside.parquet"
        pq.write_table(pa.table({"code": list(names), "name": list(names.values())}), aside)
        aside.rename(self.home / "countries" / "all.parquet")

    def flow(self, **how: object) -> hf.Flow:
        flow = hf.Flow("shop")
        described = hf.files(str(self.home / "in"), schema="id bigint, country string", max_files_per_epoch=1)
        table = hf.files(str(self.home / "countries"), schema="code string, name string")
        keyed = {"on": {"country": "code"}, "refresh": "0 seconds", **how}
        orders = flow.source("orders", described).enrich(table, **keyed)  # type: ignore[arg-type]
        orders.named("enriched").to(hf.parquet(str(self.home / "out")))
        return flow

    def run(self, **how: object) -> dict[int, str | None]:
        """By order, the name of its country."""
        self.flow(**how).run(self.work, until_idle=True, spark=self.spark)
        return self.found()

    def found(self) -> dict[int, str | None]:
        return {one["id"]: one["name"] for one in read_sink(self.home / "out").to_pylist()}

    @property
    def versions(self) -> list[str]:
        return [body["tables"]["countries"]["version"] for body in plans(self.work, "enriched")]  # type: ignore[index]

    @property
    def copies(self) -> list[Path]:
        return sorted((self.work / "tables" / "enriched").glob("*"))


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


def test_rows_keep_the_version_that_they_were_read_with(shop: Shop) -> None:
    shop.countries(DE="Germany", FR="France")
    shop.order("DE", "FR", "XX", None)
    assert shop.run() == {0: "Germany", 1: "France", 2: None, 3: None}
    shop.countries(DE="Deutschland", FR="France", XX="Nowhere")
    shop.order("DE", "XX")
    assert shop.run() == {0: "Germany", 1: "France", 2: None, 3: None, 4: "Deutschland", 5: "Nowhere"}
    assert len(set(shop.versions)) == len(shop.copies) == 2


def test_a_table_that_holds_the_same_rows_is_the_same_version(shop: Shop) -> None:
    """Other files, another order of rows: what counts is what the table holds."""
    shop.countries(DE="Germany", FR="France")
    shop.order("DE")
    shop.run()
    shop.countries(FR="France", DE="Germany")
    shop.order("FR")
    assert shop.run() == {0: "Germany", 1: "France"}
    assert len(set(shop.versions)) == len(shop.copies) == 1


def test_a_static_table_is_looked_at_once_in_a_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.runtime.stage_loop import StageLoop

    committed = StageLoop._commit

    def replaced(self: StageLoop, *args: object) -> None:
        committed(self, *args)  # type: ignore[arg-type]
        shop.countries(DE="another")

    monkeypatch.setattr(StageLoop, "_commit", replaced)
    shop.countries(DE="first")
    shop.order("DE")
    shop.order("DE")
    assert shop.run(refresh=None) == {0: "first", 1: "first"}
    shop.countries(DE="first")
    shop.order("DE")
    shop.order("DE")
    assert shop.run(refresh="0 seconds") == {0: "first", 1: "first", 2: "first", 3: "another"}


def test_a_table_without_files_is_an_empty_one(shop: Shop) -> None:
    shop.order("DE", "FR")
    assert shop.run() == {0: None, 1: None}


def test_an_inner_enrichment_drops_rows_without_a_partner(shop: Shop) -> None:
    shop.countries(DE="Germany")
    shop.order("DE", "FR", None, "DE")
    assert shop.run(how="inner") == {0: "Germany", 3: "Germany"}


def cut_off(shop: Shop, orders: str) -> None:
    """A run that ends where a crash point says, as if nobody answered there."""
    crashpoints.obey(Orders(orders))
    try:
        with pytest.raises(HoldfastError, match="as was asked for"):
            shop.run()
    finally:
        crashpoints.obey(NO_ORDERS)


def test_a_replay_is_enriched_with_the_recorded_version(shop: Shop) -> None:
    """The rows of an epoch are lost before a sink has them; the table holds something else by then."""
    shop.countries(DE="Germany")
    shop.order("DE", "FR")
    cut_off(shop, "sink.before_stage:1:raise")
    for segment in (shop.work / "data" / "enriched").rglob("*.parquet"):
        segment.unlink()
    shop.countries(DE="Deutschland")
    shop.order("DE")
    report = shop.flow().run(shop.work, until_idle=True, spark=shop.spark)
    assert report.stages["enriched"].repairs == 1
    assert shop.found() == {0: "Germany", 1: None, 2: "Deutschland"}


def test_a_replay_whose_copy_is_lost_stops_and_says_what_to_do(shop: Shop) -> None:
    shop.countries(DE="Germany")
    shop.order("DE")
    cut_off(shop, "sink.before_stage:1:raise")
    [copy] = shop.copies
    kept = copy.read_bytes()
    for path in ((shop.work / "data" / "enriched").rglob("*.parquet"), [copy]):
        for file in path:
            file.unlink()
    with pytest.raises(
        StorageError, match=r"(?s)copy of table 'countries', version \w+, is missing.*from a backup"
    ):
        shop.run()
    copy.write_bytes(kept)
    assert shop.run() == {0: "Germany"}


def test_an_epoch_that_was_planned_is_run_with_its_version(shop: Shop) -> None:
    shop.countries(DE="Germany")
    shop.order("DE")
    cut_off(shop, "commit.before:1:raise")
    shop.countries(DE="Deutschland")
    assert shop.run() == {0: "Germany"}


def test_an_epoch_that_was_not_committed_is_planned_anew_if_the_copy_is_lost(shop: Shop) -> None:
    shop.countries(DE="Germany")
    shop.order("DE")
    cut_off(shop, "commit.before:1:raise")
    [copy] = shop.copies
    copy.write_bytes(copy.read_bytes()[:-1])
    shop.countries(DE="Deutschland")
    assert shop.run() == {0: "Deutschland"}


def test_a_copy_that_no_plan_came_to_name_does_no_harm(shop: Shop) -> None:
    shop.countries(DE="Germany")
    shop.order("DE")
    cut_off(shop, "table.after_copy:1:raise")
    assert len(shop.copies) == 1
    shop.countries(DE="Deutschland")
    shop.order("DE")
    assert shop.run() == {0: "Deutschland", 1: "Deutschland"}


def test_a_key_that_comes_twice_is_named_and_nothing_is_planned(shop: Shop) -> None:
    shop.countries(DE="Germany", FR="France")
    pq.write_table(
        pa.table({"code": ["FR", None, None], "name": ["Frankreich", "", ""]}), shop.home / "countries" / "b"
    )
    shop.order("DE")
    with pytest.raises(
        InputError, match=r"(?s)stage 'enriched', epoch 0.*2 rows with the key code = 'FR'.*one row for each"
    ):
        shop.run()
    assert plans(shop.work, "enriched") == []
    (shop.home / "countries" / "b").unlink()
    assert shop.run() == {0: "Germany"}


def test_what_is_no_file_of_the_table_is_told(shop: Shop) -> None:
    shop.order("DE")
    (shop.home / "countries" / "half.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(
        InputError, match=r"table 'countries' cannot read .*half.parquet: it is not a whole Parquet file"
    ) as told:
        shop.run()
    assert "quarantine" not in str(told.value)
    (shop.home / "countries" / "half.parquet").unlink()
    (shop.home / "countries").rmdir()
    with pytest.raises(InputError, match=r"table 'countries' cannot list .*countries: No such file"):
        shop.run()
    (shop.home / "countries").mkdir()
    assert shop.run() == {0: None}


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [("ROWS", 1, "2 rows, .*at most 1"), ("FILES", 0, "1 files"), ("BYTES", 10, ".* bytes of files")],
)
def test_a_table_that_is_too_large_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, said: str
) -> None:
    monkeypatch.setattr(limits, f"TABLE_{bound}_MAX", value)
    shop.countries(DE="Germany", FR="France")
    shop.order("DE")
    with pytest.raises(InputError, match=f"(?s)table 'countries' has {said}.*Leave out columns"):
        shop.run()


def test_files_that_change_while_they_are_read_are_read_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runtime.tables import TableVersions

    collected, left = TableVersions._collected, [2]

    def interfered(self: TableVersions, *args: object) -> pa.Table:
        found = collected(self, *args)  # type: ignore[arg-type]
        left[0] -= 1
        if left[0] >= 0:
            shop.countries(DE=f"read again {left[0]}")
        return found

    monkeypatch.setattr(TableVersions, "_collected", interfered)
    shop.countries(DE="Germany")
    shop.order("DE")
    assert shop.run() == {0: "read again 0"}
    left[0] = 3
    shop.countries(DE="once more")
    shop.order("DE")
    with pytest.raises(InputError, match="change while they are read"):
        shop.run()


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("csv", "code,size\nDE,1.50\nFR,\n", "code,size\nDE,much\n"),
        ("json", '{"code": "DE", "size": 1.5}\n', "{"),
    ],
)
def test_tables_of_text_are_read_as_sources_are(shop: Shop, format: str, good: str, bad: str) -> None:
    def flow() -> hf.Flow:
        flow = hf.Flow("text")
        rows = flow.source("orders", hf.files(str(shop.home / "in"), schema="id bigint, country string"))
        table = hf.files(str(shop.home / "countries"), schema="code string, size decimal(5,2)", format=format)
        rows.enrich(table, on={"country": "code"}).to(hf.parquet(str(shop.home / "out")))
        return flow

    shop.order("DE", "FR")
    (shop.home / "countries" / "one").write_text(bad)
    with pytest.raises(InputError, match=r"(?s)table 'countries': a row of one is malformed.*Mend the file"):
        flow().run(shop.work, until_idle=True, spark=shop.spark)
    (shop.home / "countries" / "one").write_text(good)
    flow().run(shop.work, until_idle=True, spark=shop.spark)
    found = {one["id"]: one["size"] for one in read_sink(shop.home / "out").to_pylist()}
    assert found == {0: Decimal("1.50"), 1: None}


def test_a_table_may_be_looked_up_twice_before_windows_and_a_union(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two inputs in one stage with event time: each row is enriched, and says which input it came from."""
    home = tmp_path
    pq.write_table(pa.table({"code": ["a", "b"], "zone": ["A", "B"]}), make(home / "zones") / "all")
    for number, name in enumerate(("east", "west")):
        trips = {
            "start": ["a", "b", "c"],
            "stop": ["b", "b", "a"],
            "ts": at(*range(10 * number, 10 * number + 3)),
        }
        write_files(home / name, [pa.table(trips)])
    flow = hf.Flow("trips")
    sources = [
        flow.source(name, hf.files(str(home / name), schema="start string, stop string, ts timestamp"))
        for name in ("east", "west")
    ]
    zones = hf.files(str(home / "zones"), schema="code string, zone string")
    both = sources[0].union(sources[1]).enrich(zones, on={"start": "code"}, prefix="start_")
    named = both.enrich(zones, on={"stop": "code"}, how="inner").where("zone is not null")
    windows = named.group_by("start_zone", "zone").window("ts", tumbling="1 minute", late="1 minute")
    windows.agg(n=hf.count()).named("windows").to(hf.parquet(str(home / "out")))
    flow.run(home / "work", until_idle=True, drain=True, spark=spark)
    found = {(one["start_zone"], one["zone"]): one["n"] for one in read_sink(home / "out").to_pylist()}
    assert found == {("A", "B"): 2, ("B", "B"): 2, (None, "A"): 2}
    assert [len(body["tables"]) for body in plans(home / "work", "windows") if body["rows"]] == [1]  # type: ignore[arg-type]
    assert not any(body["direct"] for body in plans(home / "work", "windows"))


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "no column": (lambda s: s.enrich(T, on="nobody"), "is on 'nobody', which the stream does not have.*k, s"),
    "not theirs": (lambda s: s.enrich(T, on={"k": "nobody"}), "which the table does not have.*k, s, name"),
    "types": (lambda s: s.enrich(T, on={"k": "s"}), r"'k' is bigint in the stream, and 's' is string.*cast\(k as string"),
    "clash": (lambda s: s.enrich(T, on="k"), "a column 's' already.*prefix=\"T_\""),
    "twice": (lambda s: s.enrich(T, on=["k", "s"]).enrich(T, on=["k", "s"]), "a column 'name' already"),
    "no key": (lambda s: s.with_column("a", "array(k)").enrich(A, on="a"), "array<bigint>, which cannot be a key"),
}  # fmt: skip

T = hf.files("T/", schema="k bigint, s string, name string")
A = hf.files("A/", schema="a array<bigint>, name string")


@pytest.mark.parametrize(("step", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_joined_is_refused_when_the_flow_is_bound(
    spark: SparkSession, step: Callable[[Stream], Stream], said: str
) -> None:
    flow = hf.Flow("refused")
    step(flow.source("rows", hf.files("in/", schema="k bigint, s string"))).named("it").to(hf.parquet("out/"))
    planned = plan(flow)
    tables = {name: parse_schema(name, spec.description.schema) for name, spec in planned.tables.items()}
    sources = {"rows": parse_schema("rows", "k bigint, s string")}
    with epoch_settings(spark), pytest.raises(PlanError, match=f"(?s){said}"):
        bind(spark, planned, sources, tables=tables)


def test_an_edited_enrichment_is_told_by_what_it_says(shop: Shop) -> None:
    shop.countries(DE="Germany")
    for how in ("left", "left", "inner"):
        shop.order("DE", "XX")
        shop.run(how=how)
    with reading(shop.work) as tx:
        events = tx.execute(schema.events.select()).all()
    told = [event.reason for event in events if event.kind == "code changed"]
    assert len(told) == 1
    assert "`enrich with countries (parquet files of" in told[0]
    assert "on country = code, inner`" in told[0]
    assert shop.found() == {0: "Germany", 1: None, 2: "Germany", 3: None, 4: "Germany"}
