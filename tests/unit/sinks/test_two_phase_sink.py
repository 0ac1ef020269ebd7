"""A target that prepares and commits, made of files: preparing writes them, committing renames them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.edges import TwoPhase
from holdfast.testing import Doubtful, TwoPhaseSuite
from holdfast.testing.epochs import SCHEMA


class Renamed(TwoPhase):
    def __init__(self, place: Path) -> None:
        self._prepared, self._shown = place / "prepared", place / "shown"
        for directory in (self._prepared, self._shown):
            directory.mkdir(parents=True, exist_ok=True)

    def prepare(self, token: str, epoch: int, rows: pa.RecordBatchReader) -> None:
        staged = self._prepared / f".{token}"
        pq.write_table(rows.read_all(), staged)
        staged.rename(self._prepared / token)

    def commit(self, token: str) -> bool:
        if (self._prepared / token).exists():
            (self._prepared / token).rename(self._shown / token)
        return (self._shown / token).exists()

    def abort(self, token: str) -> None:
        (self._prepared / token).unlink(missing_ok=True)

    def in_doubt(self, prefix: str) -> Iterable[str]:
        return [path.name for path in self._prepared.glob("*") if path.name.startswith(prefix)]


class TestRenamed(TwoPhaseSuite):
    def doubtful(self, place: Path) -> Doubtful:
        def rows() -> pa.Table:
            return pa.concat_tables([SCHEMA.empty_table(), *map(pq.read_table, (place / "shown").glob("*"))])

        return Doubtful(lambda: Renamed(place), rows)
