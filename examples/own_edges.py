"""A source and a sink of one's own: an append-only file of JSON lines, and a table in SQLite.

    holdfast run examples/own_edges.py --until-idle

Both pass the suites of holdfast.testing: tests/spark/test_own_edges.py.
"""

import io
import os
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

import holdfast as hf
from holdfast.edges import Item, Limits, SinkRecord, Source, Taken, admit, batches

COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Lines(Source):
    """A file of JSON lines that somebody appends to: an item is a range of its bytes, up to the end of a line."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def schema(self) -> t.StructType:
        return t.StructType([t.StructField("n", t.LongType()), t.StructField("text", t.StringType())])

    def next(self, after: Taken, most: Limits) -> list[Item]:
        start = after.last.body["stop"] if after.last else 0
        stop = start + self._bytes(start, None).rfind(b"\n") + 1
        return (
            [Item(f"{start}-{stop}", None, stop - start, {"start": start, "stop": stop})]
            if stop > start
            else []
        )

    def read(self, spark: SparkSession, items: Sequence[Item]) -> DataFrame:
        if not items:
            return spark.createDataFrame([], self.schema())
        lines = b"".join(self._bytes(item.body["start"], item.body["stop"]) for item in items)
        options = pj.ParseOptions(explicit_schema=COLUMNS)
        return spark.createDataFrame(pj.read_json(io.BytesIO(lines), parse_options=options))

    def _bytes(self, start: int, stop: int | None) -> bytes:
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)


class Table:
    """A table whose rows and record change in one transaction: a claim in it says who may write."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.place = os.path.abspath(path)
        self._schema = schema
        self._claim: str | None = None

    def open(self, flow: str, branch: int, generation: int, start: int = 0) -> SinkRecord | None:
        claim = uuid.uuid4().hex
        with closing(self._connected()) as db, db:
            db.execute("begin immediate")
            db.execute("create table if not exists rows (n integer, text text)")
            db.execute(
                "create table if not exists record (flow, start, claim, by, branch, epoch, revision, generation)"
            )
            found = db.execute("select flow, by from record").fetchone()
            if found and found[0] != flow:
                raise hf.SinkError(f"the target belongs to the flow {found[0]!r}, not to {flow!r}")
            if found and found[1] > generation:
                raise hf.FencedError(f"generation {generation} was replaced by generation {found[1]}")
            if not found:
                db.execute("insert into record (flow, start) values (?, ?)", (flow, start))
            db.execute("update record set claim = ?, by = ?", (claim, generation))
            last = self._last(db)
        self._claim, self._branch, self._generation = claim, branch, generation
        return last

    def publish(self, record: SinkRecord, segments: Sequence[Path]) -> None:
        if self._claim is None:
            raise hf.SinkError("the table is not open")
        if record.generation != self._generation or record.branch > self._branch:
            raise hf.SinkError(
                f"opened for branch {self._branch}, and the epoch is of generation {record.generation}"
            )
        rows = [
            row
            for batch in batches(segments, self._schema)
            for row in zip(*batch.to_pydict().values(), strict=True)
        ]
        with closing(self._connected()) as db, db:
            db.execute("begin immediate")
            claim, start = db.execute("select claim, start from record").fetchone()
            if claim != self._claim:
                raise hf.FencedError(f"generation {record.generation} was replaced")
            if admit(self._last(db), record, start=start) == "publish":
                db.executemany("insert into rows values (?, ?)", rows)
                new = (record.branch, record.epoch, record.revision, record.generation)
                db.execute("update record set branch = ?, epoch = ?, revision = ?, generation = ?", new)

    def close(self) -> None:
        self._claim = None

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self.place, timeout=10, isolation_level=None)

    def _last(self, db: sqlite3.Connection) -> SinkRecord | None:
        found = db.execute("select flow, branch, epoch, revision, generation from record").fetchone()
        return None if found is None or found[2] is None else SinkRecord(*found)


def written() -> pa.Table:
    """What a reader of the table sees; `holdfast verify` compares it."""
    with closing(sqlite3.connect("scores.db")) as db:
        rows = db.execute("select n, text from rows").fetchall()
    return pa.table({"n": [n for n, _ in rows], "text": [text for _, text in rows]}, schema=COLUMNS)


flow = hf.Flow("own")
lines = flow.source("lines", hf.own_source(lambda: Lines("lines.jsonl")))
kept = lines.transform(lambda df: df.where("n % 2 = 0")).named("kept")
kept.to(hf.own_sink(lambda schema: Table("scores.db", schema), read=written))
