"""What the command line says of a flow that ran: against known values, and against its own sinks."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import assert_same_rows, last_per_key, write_files
from command import holdfast
from event_time import events
from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.ledger.epochs import manifest_of, stage_row
from holdfast.ledger.ledger import reading
from holdfast.runtime.progress import Progress
from holdfast.runtime.snapshot import Snapshot, look
from holdfast.runtime.state_query import where
from written_state import WrittenState

SCHEMA = "id string, user string, amount decimal(10,2), qty int, ts timestamp"


def orders(*rows: tuple[str, str | None, str | None, int, int | None]) -> pa.Table:
    """Orders by id, user, amount, quantity and second."""
    ids, users, amounts, quantities, seconds = zip(*rows, strict=True)
    micros = [None if second is None else second * 1_000_000 for second in seconds]
    return pa.table(
        {
            "id": pa.array(ids),
            "user": pa.array(users, pa.string()),
            "amount": pa.array([a and Decimal(a) for a in amounts], pa.decimal128(10, 2)),
            "qty": pa.array(quantities, pa.int32()),
            "ts": pa.array(micros, pa.timestamp("us", "UTC")),
        }
    )


FILES = [
    orders(
        ("a", "x", "2.00", 1, 5), ("b", None, "1.50", 1, 6), ("a", "x", "2.00", 1, 5), ("c", "x", "3.25", 1, 70)
    ),
    orders(("d", None, None, 2, 75), ("e", "y", "0.10", 1, 200), ("f", "x", "9.00", 1, 1), ("g", "z", "1.00", 1, None)),
]  # fmt: skip


def shop(home: Path) -> hf.Flow:
    flow = hf.Flow("shop")
    source = flow.source("orders", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    unique = source.dedup("id", time="ts", within="1 hour").named("unique").late_to(hf.discard())
    totals = unique.group_by("user", "qty").agg(
        total=hf.sum("amount"),
        n=hf.count(),
        mean=hf.avg("amount"),
        dev=hf.stddev("amount"),
        newest=hf.last("id", by="ts"),
        ids=hf.approx_distinct("id"),
    )
    totals.named("totals").to(hf.parquet(str(home / "totals")))
    by_user = unique.group_by("user")
    minutes = by_user.window("ts", tumbling="1 minute", late="10 seconds").agg(total=hf.sum("amount"))
    minutes.named("minutes").to(hf.discard())
    visits = by_user.window("ts", session="30 seconds", late="10 seconds").agg(n=hf.count())
    visits.named("visits").to(hf.discard())
    source.transform(lambda df: df.select("id")).named("ids").to(hf.discard())
    return flow


@pytest.fixture(scope="module")
def home(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("shop")
    write_files(home / "in", FILES)
    shop(home).run(home / "work", until_idle=True, spark=spark, tasks=2)
    return home


def state(home: Path, stage: str) -> list[dict[str, object]]:
    return holdfast("state", stage, "--work-dir", home / "work", "--json").json["rows"]


def test_a_running_aggregate_shows_keys_by_name_and_finished_values(home: Path) -> None:
    rows = {(row["user"], row["qty"]): row for row in state(home, "totals")}
    assert set(rows) == {("x", 1), (None, 1), (None, 2), ("y", 1)}
    assert rows["x", 1] == {
        "user": "x",
        "qty": 1,
        "total": "14.25",
        "n": 3,
        "mean": "4.750000",
        "dev": pytest.approx(3.7332, abs=1e-4),
        "newest": "c",
        "ids": 3,
    }
    assert (rows[None, 2]["total"], rows[None, 2]["mean"], rows[None, 2]["n"]) == (None, None, 1)


def test_windows_and_sessions_show_what_is_open(home: Path) -> None:
    assert state(home, "minutes") == [
        {
            "user": "y",
            "window_start": "1970-01-01T00:03:00.000000Z",
            "window_end": "1970-01-01T00:04:00.000000Z",
            "total": "0.10",
        }
    ]
    assert state(home, "visits") == [
        {
            "user": "y",
            "window_start": "1970-01-01T00:03:20.000000Z",
            "window_end": "1970-01-01T00:03:50.000000Z",
            "n": 1,
        }
    ]


def test_a_dedup_shows_the_hashes_that_spark_gives_the_ids(spark: SparkSession, home: Path) -> None:
    ids = spark.createDataFrame([(name,) for name in "abcdef"], "id string")
    expected = ids.selectExpr("xxhash64(id, false) as h", "xxhash64(1L, id, false) as d").collect()
    rows = state(home, "unique")
    assert {(row["id_hash"], row["id_digest"]) for row in rows} == {(row.h, row.d) for row in expected}
    assert {row["ts"] for row in rows} >= {"1970-01-01T00:00:05.000000Z", "1970-01-01T00:03:20.000000Z"}


def test_a_stage_without_state_says_so(home: Path) -> None:
    said = holdfast("state", "ids", "--work-dir", home / "work", "--json")
    assert (said.status, said.error["message"]) == (1, "the stage keeps no state")


def test_epochs_agree_with_what_was_fed(home: Path) -> None:
    first, second = holdfast("epochs", "unique", "--work-dir", home / "work", "--json").json["epochs"]
    assert (first["inputs"], first["rows_in"], first["rows_out"]) == (
        {"source:orders": [0, 1]},
        4,
        {"out": 3},
    )
    assert (first["aside"], second["aside"]) == ({"duplicates": 1}, {"no_time": 1})
    assert (first["rows_skipped"], first["state_rows_lost"]) == (0, 0)
    assert (second["rows_out"], second["state_rows"]) == ({"out": 3, "late": 1}, 6)
    assert second["watermark"] == "1969-12-31T23:01:10Z"
    assert (first["attempts"], second["attempts"]) == (1, 1)
    assert first["layer_bytes"] > 0
    assert 0 <= first["operator_seconds"] <= first["seconds"]
    minutes = holdfast("epochs", "minutes", "--work-dir", home / "work", "--json").json["epochs"]
    assert minutes[-1]["inputs"] == {"channel:unique.out": [2, 2]}
    ids = holdfast("epochs", "ids", "--work-dir", home / "work", "--json").json["epochs"]
    assert [epoch["rows_out"]["out"] for epoch in ids] == [4, 4]


def test_status_counts_the_rows_that_state_shows(home: Path) -> None:
    found = holdfast("status", "--work-dir", home / "work", "--json").json
    stages = ("unique", "totals", "minutes", "visits")
    assert [found["stages"][stage]["state_rows"] for stage in stages] == [
        len(state(home, stage)) for stage in stages
    ]
    assert {tuple(stage["lag"].values()) for stage in found["stages"].values()} == {(0, 0)}
    assert all(cursor["lag"] == {"items": 0, "rows": 0} for cursor in found["cursors"])


def filtered(
    spark: SparkSession, home: Path, stage: str, predicate: str, *names: str
) -> list[dict[str, object]]:
    _, table = look(
        home / "work",
        stage,
        None,
        lambda found: pa.concat_tables(
            [found.view.only(names).schema.empty_table(), *where(spark, found, predicate, names, None)]
        ),
    )
    return sorted(table.to_pylist(), key=str)


def test_a_predicate_is_spark_sql_over_the_columns_that_users_know(spark: SparkSession, home: Path) -> None:
    assert filtered(spark, home, "totals", "user is null", "qty", "n") == [
        {"qty": 1, "n": 1},
        {"qty": 2, "n": 1},
    ]
    assert filtered(spark, home, "totals", "total > 10 and newest = 'c'", "user") == [{"user": "x"}]
    assert filtered(spark, home, "totals", "mean is null", "user", "qty") == [{"user": None, "qty": 2}]
    assert filtered(spark, home, "minutes", "window_end = timestamp'1970-01-01 00:04:00'", "user") == [
        {"user": "y"}
    ]
    (found,) = filtered(spark, home, "unique", "id_hash = xxhash64('a', false)", "ts")
    assert found["ts"].timestamp() == 5
    assert filtered(spark, home, "totals", "false", "user") == []
    with pytest.raises(FlowError, match=r"`usr`.*The columns are user, qty, total"):
        filtered(spark, home, "totals", "usr is null", "user")
    with pytest.raises(FlowError, match="PARSE_SYNTAX_ERROR"):
        filtered(spark, home, "totals", "user is is", "user")


def test_a_predicate_starts_over_when_files_were_swept(spark: SparkSession, work: Path) -> None:
    """The error of the job's task is recognised as that of a file that is no longer there."""
    written = WrittenState(work)
    written.discover(1, 1)
    written.commit({"ann": (1.0, 1)})
    written.commit({"ann": (9.0, 3), "bob": (2.0, 1)})
    tries = []

    def swept_at_first(found: Snapshot) -> list[float]:
        tries.append(len(found.layers))
        if len(tries) == 1:
            written.merge(0, 1)
            written.sweep(0, 1)
        parts = where(spark, found, "mean > 2", ["mean"], 10)
        return [mean for part in parts for mean in part["mean"].to_pylist()]

    assert look(work, "means", None, swept_at_first)[1] == [3.0]
    assert tries == [2, 1]


@pytest.mark.parametrize("part_rows", [50, limits.STATE_READ_ROWS_MAX])
def test_state_read_while_the_flow_merges_and_sweeps_is_that_of_one_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int
) -> None:
    monkeypatch.setattr(limits, "STATE_READ_ROWS_MAX", part_rows)
    flow = hf.Flow("watched")
    rows = flow.source("rows", hf.rows(events(5, 3_000, keys=200), per_epoch=150))
    rows.group_by("k").agg(n=hf.count(), mean=hf.avg("v"), dev=hf.stddev("v")).named("totals").to(
        hf.parquet(str(tmp_path / "out"))
    )
    seen: list[tuple[int, int]] = []

    def watch(progress: Progress) -> None:
        if progress.stage("totals").epoch < 0:
            return
        snapshot, found = look(
            tmp_path / "work", "totals", None, lambda s: sum(part.num_rows for part in s.rows())
        )
        with reading(tmp_path / "work") as tx:
            manifest = manifest_of(tx, stage_row(tx, "totals"), snapshot.epoch)
        assert manifest is not None
        assert found == manifest["state_rows"]
        seen.append((snapshot.epoch, len(snapshot.layers)))

    report = flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=2, observe=watch)
    assert report.stages["totals"].merges
    assert len({epoch for epoch, _ in seen}) > 3
    target = tmp_path / "state.parquet"
    assert holdfast("state", "totals", "--work-dir", tmp_path / "work", "--output", target).status == 0
    assert_same_rows(spark.read.parquet(str(target)), last_per_key(spark, tmp_path / "out", ["k"]))


def test_an_epoch_that_took_two_attempts_says_so(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [pa.table({"k": [1, 2]})])
    mark = tmp_path / "failed once"

    def fails_once(df):  # type: ignore[no-untyped-def]
        def check(batches):  # type: ignore[no-untyped-def]
            if not mark.exists():
                mark.touch()
                raise MemoryError("planted")  # which another Python worker may not meet
            yield from batches

        return df.mapInArrow(check, "k long")

    flow = hf.Flow("twice")
    rows = flow.source("rows", hf.files(str(tmp_path / "in"), schema="k long"))
    rows.transform(fails_once).group_by("k").agg(n=hf.count()).named("counts").to(hf.discard())
    flow.run(tmp_path / "work", until_idle=True, spark=spark, tasks=1)
    (epoch,) = holdfast("epochs", "counts", "--work-dir", tmp_path / "work", "--json").json["epochs"]
    assert epoch["attempts"] == 2
