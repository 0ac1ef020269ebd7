"""A region that is spread over several workers returns as one, whichever of them dies."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from guard import Guard, Guarded
from stand import Stand


def complete(stand: Stand) -> int:
    """How many snapshots are complete."""
    return int(stand.read("select count(*) from snapshots where status in ('committed', 'done')")[0][0])


def wait_for_snapshot(guard: Guard, stand: Stand) -> None:
    before = complete(stand)
    guard.wait("a snapshot", lambda: complete(stand) > before)


@pytest.mark.timeout(900)
def test_a_region_in_two_workers_returns_whole_when_either_is_killed(
    guarded: Guarded, stand: Stand, spark: SparkSession
) -> None:
    stand.feed(6)
    guard = guarded("captured", "--workers", "2")
    guard.wait_for_head(1)
    for group in ("main", "main-2"):
        wait_for_snapshot(guard, stand)
        stand.feed(3)
        guard.wait_for_head(stand.head() + 1)
        killed = guard.kill_primary(group)
        guard.wait_for_another_primary(killed, group)
        stand.feed(2)
        wait_for_snapshot(guard, stand)
    guard.wait_until_all_is_out()
    status, said = guard.stop()
    assert status == 0, said
    stand.check(spark)
    branches = dict(stand.read("select stage, branch from stages"))
    assert set(branches.values()) == {2}, "both times all of them returned"
