"""Sessions of our own: who can reach them, and what their Python workers begin with."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

_LISTENS = "0A"


def test_in_local_mode_spark_listens_on_loopback_only_and_asks_for_a_secret(spark: SparkSession) -> None:
    spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()
    opened = {address for pid in _family(os.getpid()) for address in _listening(pid)}
    assert opened, "Spark listens on some port"
    assert {address for address in opened if not address.startswith("127.")} == set()
    assert spark.conf.get("spark.authenticate") == "true"


def test_python_workers_have_all_imported_and_nothing_from_an_archive(spark: SparkSession) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        yield pa.RecordBatch.from_pydict({"files": [json.dumps(files)]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(tell, "files string").collect()
    files = json.loads(row.files)
    assert {"holdfast.spark.epoch", "pyarrow", "pyspark.worker"} <= files.keys()
    assert files["pyspark"] == pyspark.__file__
    assert [file for file in files.values() if file and ".zip" in file] == []


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in _children(task):
                yield from _family(child)


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended has none
        return []


def _listening(pid: int) -> Iterator[str]:
    """The addresses on which a process listens, in dots; IPv6 ones that are no IPv4 as they are."""
    sockets = set(_sockets(pid))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in sockets:
                yield _dotted(fields[1].split(":")[0])


def _sockets(pid: int) -> Iterator[str]:
    """What a process has open; a process or file that is gone by now is passed over."""
    with suppress(FileNotFoundError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    yield link[len("socket:[") : -1]


def _dotted(address: str) -> str:
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    found = socket.inet_ntop(socket.AF_INET6, packed)
    return found.removeprefix("::ffff:")
