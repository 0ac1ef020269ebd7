"""Losing a hot standby costs a flow nothing but a little time, whatever the standby was doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch import assert_same_rows, batch, last_per_key
from flow_under_fire import table
from guard import Guard, Guarded
from holdfast.core import limits
from holdfast.core.json import Json
from holdfast.ledger.sqlite_lock import writer
from stand import Stand

# From the last commit before a standby stands still to the first one afterwards: the wait for the lock, two looks at it,
# and an epoch on a busy machine.
FREED_S_MAX = (limits.LEDGER_HOLD_MS_MAX + 2 * limits.LEDGER_LOOK_MS) / 1000 + 15


def hot_standby(guard: Guard) -> Json:
    """The worker that computes beside the primary; waits until there is one."""

    def found() -> list[Json]:
        return [w for w in guard.group()["workers"] if w["part"] == "hot standby" and w["lives"]]

    guard.wait("a hot standby", lambda: bool(found()))
    return found()[0]


def kinds(stand: Stand) -> list[str]:
    return [kind for kind, _ in stand.events()]


@pytest.mark.timeout(600)
def test_a_flow_goes_on_when_its_hot_standby_is_killed_or_stands_still_inside_a_transaction(
    guarded: Guarded, stand: Stand, spark: SparkSession
) -> None:
    """First the standby is killed while the sink has epochs in hand, and they are published all the same, under the
    generation that was raised meanwhile. Then its successor is stopped with the ledger's write lock in its hand."""
    hold = stand.home / "hold"
    hold.write_text("0")
    stand.feed(8)
    guard = guarded("hot")
    standby = hot_standby(guard)
    guard.wait_for_head(7)
    primary = guard.primary()["worker"]
    # The sink gets all eight epochs at once, and stands in the middle of them.
    hold.write_text("3")
    guard.wait("epochs in hand", lambda: published(stand) == 3)
    os.kill(guard.pid(standby), signal.SIGKILL)
    guard.wait("the expulsion", lambda: "expelled" in kinds(stand))
    hold.unlink()
    guard.wait("the sink", lambda: published(stand) == 8)

    standby = hot_standby(guard)
    stand.feed(2)
    guard.wait_for_head(9)
    (stand.home / f"stop-{guard.pid(standby)}").touch()
    guard.wait("the lock in a stopped hand", lambda: is_stopped(guard, guard.pid(standby)))
    began = time.monotonic()
    stand.feed(2)
    guard.wait_for_head(11)
    assert time.monotonic() - began < FREED_S_MAX
    guard.wait("the sink", lambda: published(stand) == 12)
    # By the supervisor, which has missed its lease: nobody waits until the lock has been held for too long.
    assert [reason for kind, reason in stand.events() if kind == "lock freed"] == [
        f"process {guard.pid(standby)} stood still inside a transaction of the ledger, and was ended: it counted as gone"
    ]
    assert kinds(stand).count("promoted") == 1, stand.events()
    assert guard.primary()["worker"] == primary
    status, said = guard.stop()
    assert status == 0, said
    check(spark, stand)


def published(stand: Stand) -> int:
    """How many epochs the sink has confirmed."""
    found = stand.read("select processed from cursors where consumer like 'sink:%'")
    return int(found[0][0]) if found else 0


def is_stopped(guard: Guard, pid: int) -> bool:
    """Whether a process is stopped, inside a write transaction of the ledger."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T" and writer(guard.root / "ledger.db") == pid


def check(spark: SparkSession, stand: Stand) -> None:
    """Every epoch left once, and the last rows are those of a batch over all that was fed."""
    out = spark.read.parquet(str(stand.home / "totals"))
    assert out.groupBy("epoch", "k").count().where("count > 1").count() == 0
    assert out.select("epoch").distinct().count() == stand.files
    fed = spark.createDataFrame(pa.concat_tables([table(n) for n in range(stand.files)]))
    expected = batch(spark, fed, ["k"], {"total": "sum(v)", "n": "count(1)"})
    assert_same_rows(last_per_key(spark, stand.home / "totals", ["k"]), expected)
