"""Small flows, each of another kind, all correct; and users' own sinks, right and wrong."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa

import holdfast as hf

_SCHEMA = "id string, user string, amount double, n int, ts timestamp"


def _flow(name: str, guarantee: str = "exactly_once") -> tuple[hf.Flow, object]:
    flow = hf.Flow(name, guarantee=guarantee)
    events = hf.generate(
        _SCHEMA, rows=3_000, per_epoch=500, keys={"user": 40}, repeat=0.05, seed=3, disorder="2 seconds"
    )
    return flow, flow.source("events", events)


def passed() -> hf.Flow:
    flow, events = _flow("passed")
    events.transform(lambda df: df.where("n % 3 != 0").select("id", "user", "n")).named("kept").to(
        hf.parquet("kept")
    )
    return flow


def appended() -> hf.Flow:
    flow, events = _flow("appended")
    kept = events.transform(lambda df: df.where("n % 3 != 0").select("id", "user", "n")).named("kept")
    kept.to(hf.table("sqlite:///kept.db", "kept"))
    return flow


def totals() -> hf.Flow:
    flow, events = _flow("totals")
    events.group_by("user").agg(total=hf.sum("amount"), n=hf.count()).named("totals").to(hf.parquet("totals"))
    return flow


def upserted() -> hf.Flow:
    flow, events = _flow("upserted")
    events.group_by("user").agg(total=hf.sum("amount"), n=hf.count()).named("totals").to(
        hf.table("sqlite:///totals.db", "totals", key="user")
    )
    return flow


def windows() -> hf.Flow:
    flow, events = _flow("windows")
    by_user = events.group_by("user").window("ts", tumbling="1 second", late="2 seconds")
    by_user.agg(n=hf.count(), spent=hf.sum("amount")).named("windows").to(hf.parquet("windows"))
    return flow


def sliding() -> hf.Flow:
    flow, events = _flow("sliding")
    by_user = events.group_by("user").window("ts", sliding=("2 seconds", "1 second"), late="2 seconds")
    by_user.agg(n=hf.count()).named("windows").to(hf.parquet("windows", single_file=True))
    return flow


def sessions() -> hf.Flow:
    flow, events = _flow("sessions")
    events.group_by("user").window("ts", session="1 second", late="2 seconds").agg(n=hf.count()).named(
        "sessions"
    ).to(hf.parquet("sessions"))
    return flow


def unique() -> hf.Flow:
    flow, events = _flow("unique")
    kept = events.dedup("id", time="ts", within="10 seconds").named("unique")
    kept.late_to(hf.parquet("late")).to(hf.parquet("unique"))
    return flow


def chained() -> hf.Flow:
    flow, events = _flow("chained")
    kept = events.dedup("id", time="ts", within="10 seconds").named("unique")
    kept.group_by("user").agg(n=hf.count()).named("totals").to(hf.parquet("totals"))
    kept.group_by("n").window("ts", tumbling="1 second", late="2 seconds").agg(c=hf.count()).named("w").to(
        hf.parquet("windows")
    )
    return flow


def joined() -> hf.Flow:
    flow, events = _flow("joined")
    visits = flow.source(
        "visits", hf.generate("user string, page string, ts timestamp", rows=3_000, per_epoch=500, keys={"user": 40, "page": 5}, seed=4)
    )  # fmt: skip
    events.join(visits, on=["user"], time=("ts", "ts"), within=("-1 second", "0 seconds")).named("led").to(
        hf.parquet("led")
    )
    return flow


def held_back() -> hf.Flow:
    """Joins that keep rows until no partner can come, or until one does."""
    flow, events = _flow("held-back")
    visits = flow.source(
        "visits", hf.generate("user string, page string, ts timestamp", rows=3_000, per_epoch=500, keys={"user": 40, "page": 5}, seed=4)
    )  # fmt: skip
    near = {
        "on": ["user"],
        "time": ("ts", "ts"),
        "within": ("-20 milliseconds", "0 seconds"),
        "late": "2 seconds",
    }
    for how in ("right", "full", "semi", "anti"):
        events.join(visits, **near, how=how).named(how).to(hf.parquet(how))
    return flow


def united() -> hf.Flow:
    flow, events = _flow("united")
    more = flow.source("more", hf.generate(_SCHEMA, rows=3_000, per_epoch=500, keys={"user": 40}, seed=9))
    events.union(more).group_by("user").agg(n=hf.count()).named("totals").to(hf.parquet("totals"))
    return flow


def own_step() -> hf.Flow:
    """A running count, by a function of the user's."""
    flow, events = _flow("own-step")

    def count(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
        came = rows.group_by("user").aggregate([([], "count_all")]).rename_columns(["user", "c"])
        both = pa.concat_tables([came, state.select(["user", "c"])], promote_options="permissive")
        now = both.group_by("user").aggregate([("c", "sum")]).rename_columns(["user", "c"])
        return now, now

    events.stateful(count, by=["user"], state="c long", output="user string, c long").named("counts").to(
        hf.parquet("counts")
    )
    return flow


def remembered() -> hf.Flow:
    """A user's sink that keeps each token with the rows, in one transaction."""
    flow, events = _flow("remembered")

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        with closing(_database()) as db, db:
            if db.execute("insert or ignore into tokens values (?)", (token,)).rowcount:
                db.executemany("insert into rows values (?)", [(line,) for line in _lines(rows)])

    return _sent(flow, events, send)


def forgotten() -> hf.Flow:
    """A user's sink that says it may be called again, and writes whatever comes."""
    flow, events = _flow("forgotten")

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        with closing(_database()) as db, db:
            db.executemany("insert into rows values (?)", [(line,) for line in _lines(rows)])

    return _sent(flow, events, send)


def checked_too_late() -> hf.Flow:
    """A user's sink that is subtly wrong: it writes before it looks whether it has seen the token."""
    flow, events = _flow("checked-too-late")

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        with closing(_database()) as db:
            with db:
                db.executemany("insert into rows values (?)", [(line,) for line in _lines(rows)])
            with db:
                if not db.execute("insert or ignore into tokens values (?)", (token,)).rowcount:
                    db.execute("delete from rows where rowid > (select max(rowid) from rows) - ?", (0,))

    return _sent(flow, events, send)


def remembered_in_memory() -> hf.Flow:
    """A user's sink that knows the tokens it has seen, until its process dies."""
    flow, events = _flow("remembered-in-memory")
    seen: set[str] = set()

    def send(rows: pa.Table, epoch: int, token: str) -> None:
        if token in seen:
            return
        with closing(_database()) as db, db:
            db.executemany("insert into rows values (?)", [(line,) for line in _lines(rows)])
        seen.add(token)

    return _sent(flow, events, send)


def drawn() -> hf.Flow:
    """A column of random numbers: no two runs are the same."""
    flow, events = _flow("drawn")
    events.transform(lambda df: df.selectExpr("id", "rand() as r")).named("drawn").to(hf.parquet("drawn"))
    return flow


def _sent(flow: hf.Flow, events: object, send: object) -> hf.Flow:
    kept = events.transform(lambda df: df.where("n % 3 != 0").select("id", "user", "n")).named("kept")  # type: ignore[attr-defined]
    kept.to(hf.foreach(send, idempotent=True, read=_read))
    return flow


def _database() -> sqlite3.Connection:
    db = sqlite3.connect("sent.db")
    db.execute("create table if not exists rows (line text)")
    db.execute("create table if not exists tokens (token text primary key)")
    return db


def _read() -> list[dict[str, object]]:
    if not Path("sent.db").exists():
        return []
    with closing(_database()) as db:
        return [json.loads(line) for (line,) in db.execute("select line from rows")]


def _lines(rows: pa.Table) -> list[str]:
    return [json.dumps(row) for row in rows.to_pylist()]


CORRECT = (
    passed,
    appended,
    totals,
    upserted,
    windows,
    sliding,
    sessions,
    unique,
    chained,
    joined,
    held_back,
    united,
    own_step,
    remembered,
)
WRONG = {
    forgotten: {"rollback-repeating"},
    checked_too_late: {"rollback-repeating"},
    remembered_in_memory: {"rollback-repeating"},
    drawn: {"not deterministic"},
}
