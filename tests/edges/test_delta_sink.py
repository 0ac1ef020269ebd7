"""Delta tables as targets."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from holdfast.core.errors import PlanError, SinkError
from holdfast.flow.lake import DeltaSink, delta
from holdfast.sinks.lake import lake_rows, lake_sink
from holdfast.testing import epochs
from holdfast.testing.epochs import FLOW, SCHEMA, expected, feed
from lake_suite import LakeSuite


class TestDeltaSink(LakeSuite):
    names = ("select", "MixedCase", "Ünïcödé")

    def describe(self, place: Path, partition_by: str | None = None) -> DeltaSink:
        return delta(str(place), partition_by=partition_by)

    def create(self, description: DeltaSink, schema: pa.Schema) -> None:
        DeltaTable.create(description.path, pa.schema([column.with_nullable(True) for column in schema]))

    def append(self, description: DeltaSink, rows: pa.Table) -> None:
        write_deltalake(description.path, rows, mode="append")

    def disturb(self, description: DeltaSink) -> None:
        table = DeltaTable(description.path)
        table.alter.set_table_properties({"disturbed": str(table.version())}, raise_if_not_exists=False)

    def rewrite(self, description: DeltaSink) -> None:
        assert DeltaTable(description.path).optimize.z_order(["value"])["numFilesAdded"]

    def maintain(self, description: DeltaSink) -> None:
        table = DeltaTable(description.path)
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        log = Path(description.path, "_delta_log")
        for version in range(table.version()):
            (log / f"{version:020d}.json").unlink()

    def drop(self, description: DeltaSink) -> None:
        shutil.rmtree(description.path)


def test_a_transaction_of_ours_conflicts_in_deltalake_however_often_it_tries_again(tmp_path: Path) -> None:
    """On this the fence rests; a version of deltalake that does otherwise is found here."""
    table = str(tmp_path / "table")
    rows = epochs.rows([1])
    write_deltalake(table, rows)
    stale = DeltaTable(table)

    def mine(number: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction("mine", number)], max_commit_retries=50)

    write_deltalake(table, rows, mode="append", commit_properties=mine(1))
    write_deltalake(table, rows, mode="append")
    with pytest.raises(Exception, match="Concurrent transaction"):
        write_deltalake(stale, rows, mode="append", commit_properties=mine(1))
    assert DeltaTable(table).version() == 2


@pytest.mark.parametrize("name", ["two words", "semi;colon", "a=b", "tab\t", ""])
def test_names_that_delta_forbids_are_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="cannot have the column"):
        lake_sink(delta(str(tmp_path)), pa.schema([(name, pa.int64())]))


def test_names_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="upper from lower"):
        lake_sink(delta(str(tmp_path)), pa.schema([("a", pa.int64()), ("A", pa.int64())]))


def test_a_table_that_may_forget_transactions_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(
        str(tmp_path / "t"),
        SCHEMA,
        configuration={"delta.setTransactionRetentionDuration": "interval 1 days"},
    )
    with pytest.raises(SinkError, match="may forget"):
        lake_sink(delta(str(tmp_path / "t")), SCHEMA).open(FLOW, 0, 1)


def test_a_store_without_a_lock_is_refused() -> None:
    with pytest.raises(PlanError, match="both believe"):
        delta("s3://bucket/t", options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})


def test_odd_characters_in_a_path_are_characters(tmp_path: Path) -> None:
    description = delta(str(tmp_path / "a b#{x}?ü"))
    feed(lake_sink(description, SCHEMA), epochs.write_segments(tmp_path / "segments"), generation=1)
    assert sorted(lake_rows(description)["value"].to_pylist()) == expected()


def test_a_path_that_deltalake_would_read_as_another_is_refused(tmp_path: Path) -> None:
    for name in ("a%20b", "a[b]", "a|b", "a^b", "a\\b"):
        with pytest.raises(PlanError, match="does not find"):
            delta(str(tmp_path / name))


def test_the_columns_of_a_table_may_be_in_another_order(tmp_path: Path) -> None:
    description = delta(str(tmp_path / "t"))
    DeltaTable.create(description.path, pa.schema([("name", pa.string()), ("value", pa.int64())]))
    feed(lake_sink(description, SCHEMA), epochs.write_segments(tmp_path / "segments"), generation=1)
    assert sorted(lake_rows(description)["value"].to_pylist()) == expected()


def test_the_history_of_a_table_tells_people_of_epochs(tmp_path: Path) -> None:
    description = delta(str(tmp_path / "t"))
    feed(lake_sink(description, SCHEMA), epochs.write_segments(tmp_path / "segments"), generation=1)
    newest, *_, oldest = DeltaTable(description.path).history()
    assert json.loads(newest["holdfast"])["epoch"] == 4
    assert json.loads(oldest["holdfast"]) == {"claimed_by_generation": 1}


def test_secrets_are_shown_nowhere() -> None:
    options = {"AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_ENDPOINT_URL": "http://me:whisper@127.0.0.1:1"}
    more = {"AWS_ACCESS_KEY_ID": "id", "AWS_REGION": "x", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
    with pytest.raises(PlanError, match="holds a password") as refused:
        delta("s3://me:whisper@bucket/table")
    assert "whisper" not in str(refused.value)
    description = delta("s3://bucket/table", options={**options, **more, "timeout": "1s"})
    with pytest.raises(SinkError) as raised:
        lake_sink(description, SCHEMA).open(FLOW, 0, 1)
    for text in (repr(description), repr(description.facts), str(raised.value)):
        assert "hush" not in text
        assert "whisper" not in text


def test_without_the_package_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "holdfast.sinks.delta", raising=False)
    with pytest.raises(PlanError, match=r"pip install 'holdfast\[delta\]'"):
        lake_sink(delta(str(tmp_path)), SCHEMA)
