"""All flights that left New York in 2013, with the weather, as `holdfast run` finds them: its home comes from the
environment.

Of what R's users know as `nycflights13`: 336,776 flights, 2,512 of them of an unknown plane, 8,255 that never left.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame

import holdfast as hf

FLIGHTS = """year long, month long, day long, dep_time long, sched_dep_time long, dep_delay long, arr_time long,
    sched_arr_time long, arr_delay long, carrier string, flight long, tailnum string, origin string, dest string,
    air_time long, distance long, hour long, minute long, time_hour timestamp"""
WEATHER = "origin string, temp double, wind_dir long, wind_gust double, observed timestamp"


def at_the_minute(df: DataFrame) -> DataFrame:
    return df.selectExpr("*", "time_hour + make_dt_interval(0, 0, minute) as ts")


def build(home: Path) -> hf.Flow:
    flow = hf.Flow("flights", recover=hf.no_sync(members=2))
    flights = flow.source(
        "flights", hf.files(str(home / "flights"), schema=FLIGHTS, max_files_per_epoch=1)
    ).transform(at_the_minute)
    weather = flow.source(
        "weather", hf.files(str(home / "weather"), schema=WEATHER, format="csv", max_files_per_epoch=1)
    )
    planes, airlines = str(home / "planes.parquet"), str(home / "airlines.parquet")
    database = f"sqlite:///{home / 'out.db'}"

    unique = flights.dedup("time_hour", "carrier", "flight", time="ts", within="20 days").named("unique")
    daily = unique.group_by("origin", "carrier").window("ts", tumbling="1 day", late="2 days")
    daily.agg(
        n=hf.count(), left=hf.count("dep_time"), delay=hf.sum("dep_delay"), worst=hf.max("arr_delay")
    ).named("daily").to(hf.parquet(str(home / "daily")))

    legs = unique.group_by("tailnum").window("ts", session="6 hours", late="2 days")
    legs.agg(n=hf.count(), miles=hf.sum("distance"), soonest=hf.min("arr_delay")).named("legs").to(
        hf.table(database, "legs")
    )

    # An observation is of a full hour, a flight of a minute: the one of the hour in which the flight was to leave.
    seen = unique.transform(
        lambda df: df.selectExpr("origin", "carrier", "flight", "tailnum", "dep_delay", "ts")
    ).join(
        weather, on=["origin"], time=("ts", "observed"), within=("-59 minutes", "0 minutes"),
        late="2 days", how="left",
    )  # fmt: skip
    seen.named("seen").to(hf.parquet(str(home / "seen")))

    makers = unique.transform(
        lambda df: df.join(df.sparkSession.read.parquet(planes), "tailnum", "left").select(
            "manufacturer", "air_time", "distance"
        )
    )
    makers.group_by("manufacturer").agg(
        n=hf.count(), minutes=hf.sum("air_time"), farthest=hf.max("distance")
    ).named("makers").to(hf.table(database, "makers", key=["manufacturer"]))

    named = unique.transform(
        lambda df: df.join(df.sparkSession.read.parquet(airlines), "carrier", "left").select(
            "name", "dest", "arr_delay"
        )
    )
    named.group_by("name", "dest").agg(
        n=hf.count(), landed=hf.count("arr_delay"), delay=hf.avg("arr_delay")
    ).named("routes").to(hf.table(database, "routes", key=["name", "dest"]))
    return flow


if "FLIGHTS_HOME" in os.environ:
    flow = build(Path(os.environ["FLIGHTS_HOME"]))
