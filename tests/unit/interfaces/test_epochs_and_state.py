"""`epochs` and `state` say what the ledger and the layers hold: as tables, as JSON, as a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command import holdfast
from holdfast.state.run import forget_open_runs
from written_state import VIEW, WrittenState


@pytest.fixture
def written(work: Path) -> WrittenState:
    made = WrittenState(work)
    made.discover(2, 1, 40, 7)
    made.commit({"ann": (6.0, 3), None: (1.0, 2)}, bucket=60_000_000)
    made.commit({"[bob]": (0.0, 0)}, bucket=60_000_000, watermark_us=1_500_000)
    return made


def test_epochs_say_what_each_read_gave_and_cost(written: WrittenState) -> None:
    found = holdfast("epochs", "means", "--work-dir", written.root, "--json").json
    assert (found["flow"], found["stage"], found["head"]) == ("written", "means", 1)
    first, second = found["epochs"]
    assert first["inputs"] == {"source:in": [0, 1]}
    assert (first["rows_in"], first["rows_out"]) == (2, {"out": 2, "late": 1})
    assert (first["keys"], first["state_rows"], first["attempts"]) == (2, 2, 1)
    assert (first["seconds"], first["operator_seconds"]) == (0.25, 0.01)
    assert first["layer_bytes"] > 0
    assert (first["watermark"], second["watermark"]) == (None, "1970-01-01T00:00:01.500000Z")
    assert first["digest"] != second["digest"]
    assert first["aside"] == {"late": 1}
    assert first["committed"].endswith("Z")
    (newest,) = holdfast("epochs", "means", "--work-dir", written.root, "--last", "1", "--json").json[
        "epochs"
    ]
    assert newest == second


def test_epochs_are_a_line_each(written: WrittenState) -> None:
    head, first, second, about = holdfast("epochs", "means", "--work-dir", written.root).out.splitlines()
    assert head.split()[:3] == ["epoch", "rows", "in"]
    assert first.split()[:4] == ["0", "2", "2,", "late"]
    assert "source:in[1:2]" in second
    assert "1970-01-01T00:00:01.500000Z" in second
    assert about == "flow written, stage means: newest epoch 1"


def test_epochs_of_an_older_holdfast_lack_what_it_did_not_record(written: WrittenState) -> None:
    import sqlalchemy as sa

    from holdfast.ledger import schema

    with written.ledger.unfenced_write() as tx:
        body = tx.execute(sa.select(schema.manifests.c.body)).scalars().first()
        assert body is not None
        old = {name: value for name, value in body.items() if name not in ("attempts", "layer_bytes")}
        tx.execute(sa.update(schema.manifests).values(body=old))
    first = holdfast("epochs", "means", "--work-dir", written.root, "--json").json["epochs"][0]
    assert (first["attempts"], first["layer_bytes"]) == (None, None)
    assert holdfast("epochs", "means", "--work-dir", written.root).status == 0


def test_state_has_users_names_types_and_values(written: WrittenState) -> None:
    found = holdfast("state", "means", "--work-dir", written.root, "--json").json
    assert found["columns"] == [
        {"name": "user", "type": "string"},
        {"name": "window_end", "type": "timestamp"},
        {"name": "mean", "type": "double"},
    ]
    assert (found["epoch"], found["watermark"], found["more"]) == (1, "1970-01-01T00:00:01.500000Z", False)
    by_user = {row["user"]: (row["mean"], row["window_end"]) for row in found["rows"]}
    end = "1970-01-01T00:01:00.000000Z"
    assert by_user == {"ann": (2.0, end), None: (0.5, end), "[bob]": (None, end)}


def test_state_as_text_shows_nulls_and_takes_nothing_for_markup(written: WrittenState) -> None:
    *rows, about = holdfast(
        "state", "means", "--work-dir", written.root, "--columns", "user,mean"
    ).out.splitlines()
    assert sorted(row.split() for row in rows) == [
        ["NULL", "0.5"],
        ["[bob]", "NULL"],
        ["ann", "2.0"],
        ["user", "mean"],
    ]
    assert about.endswith("epoch 1, watermark 1970-01-01T00:00:01.500000Z: 3 rows")


def test_a_limit_says_that_there_is_more(written: WrittenState) -> None:
    found = holdfast("state", "means", "--work-dir", written.root, "--limit", "2", "--json").json
    assert (len(found["rows"]), found["more"]) == (2, True)
    assert (
        "the first 2 rows; --limit N shows more"
        in holdfast("state", "means", "--work-dir", written.root, "--limit", "2").out
    )
    assert (
        holdfast("state", "means", "--work-dir", written.root, "--limit", "3", "--json").json["more"] is False
    )


def test_an_older_epoch_can_be_asked_for(written: WrittenState) -> None:
    found = holdfast("state", "means", "--work-dir", written.root, "--epoch", "0", "--json").json
    assert (found["epoch"], len(found["rows"])) == (0, 2)
    error = holdfast("state", "means", "--work-dir", written.root, "--epoch", "5", "--json").error
    assert error["message"] == "there is no epoch 5: the newest epoch is 1"


def test_state_goes_into_a_file_whole_or_not_at_all(written: WrittenState, tmp_path: Path) -> None:
    target = tmp_path / "means.parquet"
    words = ["state", "means", "--work-dir", written.root, "--output", target]
    said = holdfast(*words)
    assert said.out == f"3 rows of stage means at epoch 1 are in {target}\n"
    table = pq.read_table(target)
    assert table.schema.equals(VIEW.schema)
    assert sorted(table["mean"].drop_null().to_pylist()) == [0.5, 2.0]
    assert "exists already" in holdfast(*words).err
    assert holdfast(*words, "--json").status == 2
    for path in (written.root / "data").rglob("*.arrow"):
        path.unlink()
    forget_open_runs()
    target.unlink()
    assert "a file of the state is lost" in holdfast(*words).err
    assert list(tmp_path.glob("*means.parquet*")) == []


def test_an_unknown_column_is_answered_with_the_known_ones(written: WrittenState) -> None:
    said = holdfast("state", "means", "--work-dir", written.root, "--columns", "usr", "--json")
    assert said.status == 2
    assert "there is no column 'usr'; the columns are user, window_end, mean." in said.error["message"]


def test_lag_is_what_was_discovered_and_not_processed(written: WrittenState) -> None:
    found = holdfast("status", "--work-dir", written.root, "--json").json
    assert found["stages"]["means"]["lag"] == {"items": 2, "rows": 47}
    assert found["cursors"] == [
        {
            "consumer": "stage:means",
            "input": "source:in",
            "processed": 2,
            "needed": 0,
            "lag": {"items": 2, "rows": 47},
        }
    ]
    assert "47 rows in 2 items" in holdfast("status", "--work-dir", written.root).out
