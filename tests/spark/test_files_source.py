"""A directory as a source: what is discovered, what is refused, and what may be mended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.core.errors import InputError, PlanError
from holdfast.flow.endpoints import files
from holdfast.sources.contract import NOTHING, REFUSED, Limits, Taken
from holdfast.sources.files import Files
from holdfast.sources.fitness import Facts

# A schema is parsed by Spark.
pytestmark = pytest.mark.usefixtures("spark")

NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything, so what a user may not read is tried as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def source(directory: Path, **options: object) -> Files:
    return Files("orders", files(str(directory), **{"schema": "a bigint", **options}))  # type: ignore[arg-type]


def put(path: Path, rows: int = 3) -> Path:
    pq.write_table(pa.table({"a": list(range(rows))}), path)
    return path


def refusal(found: Files) -> InputError:
    with pytest.raises(InputError) as caught:
        found.next(NOTHING, Limits())
    assert "source 'orders'" in caught.value.message
    assert caught.value.hint
    return caught.value


def test_files_are_found_in_the_order_of_their_modification_each_once(tmp_path: Path) -> None:
    for name, at in (("b.parquet", 2), ("a.parquet", 2), ("c.parquet", 1), (".hidden", 0), ("_SUCCESS", 0)):
        os.utime(put(tmp_path / name), (at, at))
    (tmp_path / "directory").mkdir()
    found = source(tmp_path).next(Taken(1, known={"b.parquet"}), Limits())
    assert [item.identity for item in found] == ["c.parquet", "a.parquet"]
    assert [item.rows for item in found] == [3, 3]


def test_a_file_that_vanishes_while_it_is_looked_at_was_never_there(tmp_path: Path) -> None:
    class Vanishing(set[str]):
        """As soon as the listing has named it, the file is gone."""

        def __contains__(self, name: object) -> bool:
            (tmp_path / "listed.parquet").unlink(missing_ok=True)
            return False

    class Opening(Files):
        def _facts(self, name: str) -> Facts:
            (tmp_path / "stamped.parquet").unlink(missing_ok=True)
            return super()._facts(name)

    for name in ("listed.parquet", "stamped.parquet", "there.parquet"):
        put(tmp_path / name)
    found = Opening("orders", files(str(tmp_path), schema="a bigint")).next(
        Taken(0, known=Vanishing()), Limits()
    )
    assert [item.identity for item in found] == ["there.parquet"]


def test_a_missing_directory_and_a_file_in_its_place_say_what_to_do(tmp_path: Path) -> None:
    assert "Make the directory" in str(refusal(source(tmp_path / "missing")))
    assert "the directory that the file is in" in str(refusal(source(put(tmp_path / "a.parquet"))))


def test_a_directory_or_file_without_permission_is_named_and_never_set_aside(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    closed = tmp_path / "open" / "closed.parquet"
    closed.parent.mkdir()
    put(closed).chmod(0o000)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    if os.geteuid() != 0:
        locked.chmod(0o000)
    for on_error in ("fail", "quarantine"):
        with without_privileges():
            listing = refusal(source(locked, on_error=on_error))
            opening = refusal(source(closed.parent, on_error=on_error))
        assert f"cannot list {locked}: Permission denied" in listing.message
        assert f"cannot open {closed}: Permission denied" in opening.message
    locked.chmod(0o700)


def test_a_file_that_cannot_be_read_stops_or_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    told = refusal(source(tmp_path))
    assert f"cannot read {tmp_path / 'bad.parquet'}: it is not a whole Parquet file" in told.message
    assert 'on_error="quarantine"' in str(told)
    quarantining = source(tmp_path, on_error="quarantine")
    found = {item.identity: item for item in quarantining.next(NOTHING, Limits())}
    assert "not a whole Parquet file" in found["bad.parquet"].body[REFUSED]
    assert found["bad.parquet"].rows is None
    assert quarantining.checked(list(found.values())) == [tmp_path / "good.parquet"]


def test_a_file_is_taken_as_found_until_then_it_must_not_change(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet")
    found = source(tmp_path)
    (item,) = found.next(NOTHING, Limits())
    assert found.as_found(item) == item
    put(path, rows=5)
    with pytest.raises(InputError, match="has changed since it was discovered"):
        found.checked([item])
    mended = found.as_found(item)
    assert (mended.identity, mended.rows) == ("a.parquet", 5)
    assert found.checked([mended]) == [path]
    path.unlink()
    assert found.as_found(mended) == mended
    with pytest.raises(InputError, match="is gone"):
        found.checked([mended])


def test_a_file_that_was_set_aside_and_then_mended_has_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    found = source(tmp_path, on_error="quarantine")
    (item,) = found.next(NOTHING, Limits())
    put(path)
    assert found.as_found(item).rows == 3
    assert REFUSED not in found.as_found(item).body


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format": "orc"}, "format='orc' is not one of parquet, json, csv"),
        ({"on_error": "ignore"}, "on_error='ignore' is not one of fail, quarantine"),
        ({"header": False}, "are for CSV files"),
        ({"format": "json", "separator": ";"}, "are for CSV files"),
        ({"format": "csv", "separator": "||"}, "is not one character"),
        ({"format": "csv", "separator": '"'}, "is not one character"),
        ({"max_files_per_epoch": 0}, "must be at least 1"),
        ({"max_rows_per_epoch": 0}, "must be at least 1"),
        ({"idle_after": "soon"}, "is not a duration"),
        ({"schema": "a nothing"}, "the schema of source 'orders' cannot be read"),
        ({"schema": "bigint"}, "one type, not columns"),
        ({"format": "csv", "schema": "a array<int>"}, "a CSV file cannot hold the column 'a'"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        source(tmp_path, **options)
