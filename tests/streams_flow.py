"""Flows of streams, one that cannot resume and one that can: `python streams_flow.py HOME PORT STREAM...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import holdfast as hf


def flow(home: Path, port: int, streams: Sequence[str]) -> hf.Flow:
    described = {
        "heard": hf.read_stream(
            lambda spark: (
                spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
            ),
            schema="value string",
            resumes=False,
        ),
        "counted": hf.read_stream(
            lambda spark: spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load(),
            schema="value bigint",
            trigger="100 ms",
        ),
    }
    # What a socket gave and nobody logged is gone: no more can be promised of it.
    made = hf.Flow("streams", guarantee="at_most_once" if "heard" in streams else "exactly_once")
    for name in streams:
        rows = made.source(name, described[name])
        rows.transform(lambda df: df).named(name).to(hf.parquet(str(home / name)))
    return made


if __name__ == "__main__":
    place = Path(sys.argv[1])
    flow(place, int(sys.argv[2]), sys.argv[3:]).run(place / "work", master="local[2]")
