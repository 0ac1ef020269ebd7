"""Flows with loops: what comes back is read once it is durable, holds nobody back, and carries no watermark."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from batch import plans, read_sink
from event_time import MINUTE_US, START_US, UTC_TIME
from holdfast.core import limits
from holdfast.flow.flow import Stream
from holdfast.flow.policies import Policy
from holdfast.ledger import epochs, files
from holdfast.ledger.ledger import Ledger
from holdfast.storage import shipper
from interrupted import orphan, run_until

COUNT = "k long, n long"


def less(df: DataFrame) -> DataFrame:
    """One less, until there is nothing."""
    return df.where("n > 0").selectExpr("k", "n - 1 as n")


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"k": k, "n": n} for k, n in enumerate(numbers)]


def countdown(home: Path, numbers: list[int], per_epoch: int = 1, **flow: object) -> hf.Flow:
    """A stage without state that reads its own output."""
    made = hf.Flow("countdown", **flow)  # type: ignore[arg-type]
    source = made.source("numbers", hf.rows(rows(*numbers), per_epoch=per_epoch))
    loop = made.feedback("again", schema=COUNT)
    loop.close_with(source.union(loop).transform(less).named("less")).to(hf.parquet(str(home / "out")))
    return made


def counted_down(*numbers: int) -> Counter[tuple[int, int]]:
    return Counter((k, n) for k, number in enumerate(numbers) for n in range(number))


def found(sink: Path, *columns: str) -> Counter[tuple[object, ...]]:
    table = read_sink(sink)
    return Counter(zip(*(table[column].to_pylist() for column in columns or ("k", "n")), strict=True))


def asked(work: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(work / "ledger.db")) as ledger:
        return ledger.execute(query).fetchall()


@pytest.mark.parametrize(
    "policy", [hf.no_sync(), hf.strong_production(), hf.passive_standby()], ids=lambda policy: policy.name
)
def test_a_stage_that_reads_its_own_output_comes_to_rest(
    spark: SparkSession, tmp_path: Path, policy: Policy
) -> None:
    countdown(tmp_path, [3, 0, 5], recover=policy).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "out") == counted_down(3, 0, 5)


def test_nothing_of_a_loop_at_rest_is_kept_and_it_goes_on_with_new_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A cycle reads itself, and would keep itself alive if what it needs followed anything but its safe points."""
    countdown(tmp_path, [4]).run(tmp_path / "work", until_idle=True, spark=spark)
    held = asked(tmp_path / "work", "select epoch from segments where rows > 0 and status != 'condemned'")
    assert held == []
    countdown(tmp_path, [4, 2]).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "out") == counted_down(4, 2)


def test_a_cycle_is_captured_on_its_way_round_and_returns_to_that(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What is on its way round is part of the snapshot: nothing of it is lost, and nothing goes round twice."""
    numbers, work = [40, 0, 45], tmp_path / "work"
    captured = "select count(*) from snapshots where status in ('committed', 'done') and mode = 'unaligned'"

    def made(every: str) -> hf.Flow:
        return countdown(tmp_path, numbers, recover=hf.snapshot(every, "unaligned"))

    run_until(made("200 ms"), work, spark, lambda: asked(work, captured)[0][0] >= 2)
    between = asked(work, "select epoch, positions from snapshot_parts order by number desc limit 1")
    assert json.loads(between[0][1])["channel:less.out"] <= between[0][0] + 1
    orphan(work)
    made("200 ms").run(work, until_idle=True, spark=spark)
    assert asked(work, "select branch from stages") == [(1,)]
    assert found(tmp_path / "out") == counted_down(*numbers)


def test_a_flow_that_carries_files_nowhere_has_nothing_to_wait_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = countdown(tmp_path, [3], survives="process")
    flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "out") == counted_down(3)
    assert asked(tmp_path / "work", "select * from tiers") == []


def test_no_plan_reads_what_is_fed_back_before_it_is_durable(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carrying is slow here, so a plan that did not wait for it would be there first; so would the end of the run."""
    read: list[tuple[int, int]] = []
    record, carry = epochs.record_plan, shipper.make_durable

    def recorded(ledger: Ledger, row: epochs.StageRow, body: dict):
        with ledger.read() as tx:
            read.append((body["ranges"]["channel:less.out"][1] - 1, files.safe_point(tx, "less", "disk")))
        return record(ledger, row, body)

    def slowly(*given: object) -> None:
        time.sleep(0.5)
        carry(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(epochs, "record_plan", recorded)
    monkeypatch.setattr(shipper, "make_durable", slowly)
    countdown(tmp_path, [4]).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "out") == counted_down(4)
    assert len(read) == 5
    assert all(last <= safe for last, safe in read), read


def loop_after_loop(home: Path) -> hf.Flow:
    """Numbers that count down to 0, each of which then counts down to -3 times its key."""
    flow = hf.Flow("loops")
    source = flow.source("numbers", hf.rows(rows(3, 2), per_epoch=1))
    first, second = flow.feedback("first", schema=COUNT), flow.feedback("second", schema=COUNT)
    down = first.close_with(source.union(first).transform(less).named("down"))
    below = down.transform(lambda df: df.where("n = 0")).union(second)
    further = below.transform(lambda df: df.where("n > -3 * k").selectExpr("k", "n - 1 as n"))
    second.close_with(further.named("further")).to(hf.parquet(str(home / "below")))
    down.group_by("k").agg(n=hf.count()).named("counts").to(hf.parquet(str(home / "counts")))
    return flow


def test_a_loop_feeds_another_and_a_stage_outside_of_both(spark: SparkSession, tmp_path: Path) -> None:
    loop_after_loop(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "below") == Counter({(1, -1): 1, (1, -2): 1, (1, -3): 1})
    last = dict(sorted(found(tmp_path / "counts")))
    assert last == {0: 3, 1: 2}


def joined(home: Path) -> hf.Flow:
    """What can be reached: links are joined with the places that were reached so far."""
    flow = hf.Flow("reach")
    links = [(0, 1), (1, 2), (1, 3), (3, 4), (7, 8)]
    table = pa.table({"a": [a for a, _ in links], "b": [b for _, b in links], "at": at_once(len(links))})
    start = pa.table({"a": [0], "at": at_once(1)})
    reached = flow.feedback("reached", schema="a long, at timestamp")
    places = flow.source("start", hf.rows(start)).union(reached)
    steps = flow.source("links", hf.rows(table, per_epoch=2)).join(
        places, on="a", time=("at", "at"), within=("0 seconds", "0 seconds")
    )
    reached.close_with(steps.named("steps").transform(lambda df: df.selectExpr("b as a", "at"))).to(
        hf.parquet(str(home / "out"))
    )
    return flow


def at_once(rows: int) -> pa.Array:
    return pa.array([START_US] * rows, pa.int64()).cast(UTC_TIME)


def test_a_side_of_a_join_may_come_back(spark: SparkSession, tmp_path: Path) -> None:
    joined(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    assert sorted(read_sink(tmp_path / "out")["a"].to_pylist()) == [1, 2, 3, 4]


def windows(home: Path) -> hf.Flow:
    """Windows whose counts come back as rows of a day later, twice."""
    flow = hf.Flow("windows")
    times = pa.array([START_US + minute * MINUTE_US for minute in (0, 1, 12, 25)], pa.int64()).cast(UTC_TIME)
    table = pa.table({"k": [1, 1, 1, 1], "times": [0, 0, 0, 0], "at": times})
    source = flow.source("rows", hf.rows(table, per_epoch=1))
    loop = flow.feedback("days", schema="k long, times long, at timestamp")
    per_window = (
        source.union(loop)
        .group_by("k", "times")
        .window("at", tumbling="10 minutes")
        .agg(n=hf.count())
        .named("windows")
        .to(hf.parquet(str(home / "out")))
    )
    later = per_window.transform(
        lambda df: df.where("times < 2").selectExpr(
            "k", "times + 1 as times", "window_start + interval 1 day as at"
        )
    )
    loop.close_with(later)
    return flow


def test_watermarks_do_not_come_back_and_draining_goes_round_until_nothing_is_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    windows(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    reached = [plan["watermark_us"] for plan in plans(tmp_path / "work", "windows") if plan["watermark_us"]]
    assert max(reached) == START_US + 25 * MINUTE_US  # type: ignore[type-var]
    assert found(tmp_path / "out", "times", "n") == Counter({(0, 2): 1, (0, 1): 1})
    windows(tmp_path).run(tmp_path / "work", drain=True, spark=spark)
    assert found(tmp_path / "out", "times", "n") == Counter({(0, 2): 1, (0, 1): 2, (1, 1): 3, (2, 1): 3})


def test_nothing_comes_in_while_too_much_is_on_its_way_round(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CYCLE_ROWS_MAX", 0)
    countdown(tmp_path, [3, 1, 2]).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "out") == counted_down(3, 1, 2)
    written = dict(asked(tmp_path / "work", "select epoch, body ->> '$.rows_out.out' from manifests"))
    taken = 0
    for epoch, plan in enumerate(plans(tmp_path / "work", "less")):
        ranges: dict[str, list[int]] = plan["ranges"]  # type: ignore[assignment]
        start, stop = ranges["source:numbers"]
        taken += stop - start
        on_its_way = range(ranges["channel:less.out"][0], epoch)
        assert start == stop or not any(int(written[e] or 0) for e in on_its_way), (epoch, ranges)
    assert taken == 3


def test_those_who_feed_back_are_not_held_back_by_those_who_read_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound of nothing, whoever waits for his own reader waits for himself."""
    monkeypatch.setattr(limits, "UNREAD_ROWS_MAX", 0)
    loop_after_loop(tmp_path).run(tmp_path / "work", until_idle=True, spark=spark)
    assert found(tmp_path / "below") == Counter({(1, -1): 1, (1, -2): 1, (1, -3): 1})


def test_a_loop_that_makes_ever_more_rows_stops_the_flow(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CYCLE_ROWS_HARD_MAX", 20)
    flow = hf.Flow("runaway")
    source = flow.source("numbers", hf.rows(rows(1)))
    loop = flow.feedback("more", schema=COUNT)
    twice = source.union(loop).transform(lambda df: df.union(df)).named("twice")
    loop.close_with(twice.to(hf.discard()))
    with pytest.raises(hf.FlowError, match="feedback 'more' does not come to rest: 32 rows") as caught:
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert (caught.value.stage, caught.value.operation) == ("twice", "plan")
    assert "round twice" in caught.value.message
    assert "filter" in str(caught.value.hint)


def closed_with_other_columns(source: Stream, loop: Stream) -> Stream:
    return source.union(loop).transform(lambda df: df.selectExpr("k"))


def closed_with_other_types(source: Stream, loop: Stream) -> Stream:
    return source.union(loop).transform(lambda df: df.selectExpr("k", "cast(n as int) as n"))


@pytest.mark.parametrize(
    ("closing_of", "spelled"),
    [(closed_with_other_columns, "k bigint"), (closed_with_other_types, "k bigint, n int")],
)
def test_what_comes_back_has_the_columns_that_were_declared(
    spark: SparkSession, tmp_path: Path, closing_of, spelled: str
) -> None:
    flow = hf.Flow("typed")
    loop = flow.feedback("again", schema=COUNT)
    source = flow.source("numbers", hf.rows(rows(1)))
    loop.close_with(closing_of(source, loop).named("back").to(hf.discard()))
    expected = f"'again' is declared as k bigint, n bigint, and closed with {spelled}$"
    with pytest.raises(hf.PlanError) as caught:
        flow.run(tmp_path / "work", until_idle=True, spark=spark)
    assert caught.value.stage == "back"
    assert caught.value.message.endswith(expected.removesuffix("$"))


def test_a_lost_state_is_made_again_of_feedback_that_is_lost_as_well(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The stage that is repaired first reads one that comes after it; its delta is never due, so nothing is let go."""

    def sums() -> hf.Flow:
        flow = hf.Flow("sums")
        loop = flow.feedback("again", schema=COUNT)
        source = flow.source("numbers", hf.rows(rows(3), per_epoch=1))
        total = source.union(loop.as_rows()).group_by("k").agg(n=hf.min("n")).named("least")
        total.recover(hf.passive_standby(every=100)).to(hf.parquet(str(tmp_path / "out")))
        loop.close_with(total.transform(less).named("less"))
        return flow

    sums().run(tmp_path / "work", until_idle=True, spark=spark)
    lost = [path for path in (tmp_path / "work" / "data").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "work" / "data").parts[0] for path in lost} == {"least", "less"}
    for path in lost:
        path.unlink()
    report = sums().run(tmp_path / "work", until_idle=True, spark=spark)
    assert report.stages["least"].repairs > 0
    assert report.stages["less"].repairs > 0
    assert found(tmp_path / "out") == Counter({(0, n): 1 for n in range(4)})
