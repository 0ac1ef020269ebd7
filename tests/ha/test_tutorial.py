"""The tutorial runs as written: in each chapter a worker really dies, and the result is that of an independent computation."""

from __future__ import annotations

import csv
import re
import runpy
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.sources.generated_rows import BLOCK_ROWS, Columns
from walk import TUTORIAL, Walk

MINUTE = timedelta(minutes=1)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Callable[[str], Walk]]:
    made: list[Walk] = []

    def begin(chapter: str) -> Walk:
        made.append(Walk.begin(tmp_path, chapter))
        return made[-1]

    yield begin
    for one in made:
        one.end()


@pytest.mark.timeout(600)
def test_the_first_flow_runs_as_written(walk: Callable[[str], Walk]) -> None:
    """Its worker is killed, and replaced; then all of it is killed, and run again."""
    chapter = walk("01-a-first-flow.md")
    explain, kill_worker, look, check, kill_all, again = chapter.commands
    totals = totals_of(generated(chapter.home / "shop.py"))
    summary = f"({totals.num_rows}, {pc.sum(totals['orders'])})"
    assert chapter.page.read_text().count(f"`{summary}`") == 2

    assert "stage unique" in chapter.type(explain)
    said = chapter.type(kill_worker)
    assert chapter.replaced(said) in said
    assert chapter.replaced(said) in chapter.type(look)
    assert chapter.recovered().keys() == {"unique", "totals"}
    assert chapter.type(check).strip() == summary
    assert_same_totals(table(chapter.home, "select user, spent, orders from totals"), totals)

    said = chapter.type(kill_all)
    assert "\nkilled\n" in said
    assert ", not running\n" in said
    chapter.killed(said)
    assert sum_of(chapter.home, "totals") < sum(totals["orders"].to_pylist()), "it was over before the kill"
    said = chapter.type(again)
    assert said.splitlines()[-1] == summary
    assert chapter.recovered().keys() == {"unique", "totals"}
    assert_same_totals(table(chapter.home, "select user, spent, orders from totals"), totals)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_event_time_runs_as_written(walk: Callable[[str], Walk]) -> None:
    """Which clicks are late follows from the files alone: the kill before the late one changes nothing."""
    chapter = walk("02-event-time.md")
    closes, look, kill_worker, moves_on = chapter.commands
    chapter.type(closes)
    said = chapter.type(look)
    assert "flow clicks, stage minutes: newest epoch 2" in said
    assert ["12:00:50" in said, "12:01:10" in said] == [True, True]
    said = chapter.type(kill_worker)
    assert chapter.replaced(said) in said
    assert "minutes: 1 late" in said
    said = chapter.type(moves_on)

    minutes, late = clicks_of(chapter.home / "in", ["a", "b", "c", "d"], timedelta(seconds=30))
    assert late == ["c-0"]
    assert sorted(minutes.values()) == [3, 3]
    shown = [f"minute {at:%Y-%m-%d %H:%M:%S.%f} home {number}" for at, number in sorted(minutes.items())]
    assert said.splitlines()[-3:] == [*shown, "late c-0 2026-05-04 12:00:30.000000"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("policy", ["gap", pytest.param("default", marks=pytest.mark.slow), "hot"])
def test_policies_differ_as_written(walk: Callable[[str], Walk], policy: str) -> None:
    """Under `gap` as many rows are missing as are said to be skipped; under the others none is missing or there twice."""
    chapter = walk("03-choosing-a-policy.md").of(policy)
    (typed,) = (command for command in chapter.commands if f"POLICY={policy} " in command)
    said = chapter.type(typed)
    assert chapter.replaced(said) in (chapter.home / f"{policy}.log").read_text()
    assert bool(re.search(r"^main .* hot standby ", said, re.MULTILINE)) == (policy == "hot")
    sent, missing, skipped, lost, twice = told_by_report(said)
    assert sent == 12_500
    assert (missing, twice) == payments_of(chapter.home, policy)
    if policy == "gap":
        assert missing == skipped > 0
        assert lost == sent - skipped, "an id that was seen before the kill is one row of state"
        assert twice == 500
        assert f"skipped: stage once: {skipped} rows unread, {lost} rows of state" in said
    else:
        assert (missing, skipped, lost, twice) == (0, 0, 0, 0)


def test_the_chapter_on_policies_recommends_what_the_page_on_recovery_does() -> None:
    def recommended(page: Path, heading: str, column: int) -> list[str]:
        text = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        rows = [line.split("|")[column].strip() for line in text.splitlines() if line.startswith("| ")]
        return sorted(re.findall(r"`(\w+\(.*?\))`", " ".join(rows)))

    chapter = recommended(TUTORIAL / "03-choosing-a-policy.md", "Which policy when", 2)
    assert chapter == recommended(TUTORIAL.parent / "RECOVERY.md", "Which one", 1)


def told_by_report(said: str) -> list[int]:
    """The numbers of the chapter's last report: sent, missing, skipped, lost, twice."""
    report = said[said.rindex(" payments were sent") - len("12500") :]
    *rows, pause, end = report.splitlines()
    assert re.fullmatch(r"nothing was committed for \d+\.\d s", pause)
    assert end == "all is through"
    return [int(number) for number in re.findall(r"\d+", " ".join(rows))]


def payments_of(home: Path, policy: str) -> tuple[int, int]:
    """Of the payments in the files, how many the table lacks, and how many it has twice."""
    files = (home / "in" / policy).glob("*.csv")
    sent = Counter(row["id"] for file in files for row in csv.DictReader(file.open()))
    with closing(sqlite3.connect(home / "payments.db")) as database:
        found = Counter(id for (id,) in database.execute(f'select id from "{policy}"'))
    assert found.keys() <= sent.keys()
    return len(sent.keys() - found.keys()), sum(number - 1 for number in found.values())


def generated(flow: Path) -> pa.Table:
    """All orders that the source of a chapter's flow makes, at once and without Spark."""
    description = runpy.run_path(str(flow))["orders"].node.description
    kinds = {"id": pa.string(), "user": pa.string(), "amount": pa.float64(), "qty": pa.int32()}
    schema = pa.schema([*kinds.items(), ("ts", pa.timestamp("us", "UTC"))])
    columns = Columns("orders", description.recipe, schema)
    made = [columns.block(number) for number in range(-(-description.rows // BLOCK_ROWS))]
    return pa.Table.from_batches(made).slice(0, description.rows)


def totals_of(orders: pa.Table) -> pa.Table:
    """By user, what was spent in how many orders, each id once: a repeated row equals the first."""
    unique = orders.group_by(["id", "user", "amount", "qty"]).aggregate([])
    spent = pc.multiply(unique["amount"], unique["qty"].cast(pa.float64()))
    grouped = unique.append_column("spent", spent).group_by("user")
    found = grouped.aggregate([("spent", "sum"), ("id", "count_distinct")])
    return found.rename_columns({"spent_sum": "spent", "id_count_distinct": "orders"})


def assert_same_totals(found: list[tuple], expected: pa.Table) -> None:
    """A row for each user; sums of doubles may differ in their last bits."""
    wanted = {
        row["user"]: (pytest.approx(row["spent"], rel=1e-9), row["orders"]) for row in expected.to_pylist()
    }
    assert len(found) == len(wanted)
    assert {user: (spent, orders) for user, spent, orders in found} == wanted


def clicks_of(folder: Path, names: list[str], late: timedelta) -> tuple[Counter[datetime], list[str]]:
    """By closed minute, the clicks; and those that are late. A file is judged by the times of the files before it."""
    counted: Counter[datetime] = Counter()
    too_late: list[str] = []
    watermark = datetime.min.replace(tzinfo=UTC)
    for name in names:
        with (folder / f"{name}.csv").open() as file:
            clicks = [(row["id"], datetime.fromisoformat(row["at"])) for row in csv.DictReader(file)]
        for click, at in clicks:
            start = at.replace(second=0)
            if start + MINUTE <= watermark:
                too_late.append(click)
            else:
                counted[start] += 1
        watermark = max([watermark, *(at - late for _, at in clicks)])
    return Counter({at: n for at, n in counted.items() if at + MINUTE <= watermark}), too_late


def table(home: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(home / "shop.db")) as database:
        return database.execute(query).fetchall()


def sum_of(home: Path, name: str) -> int:
    return int(table(home, f"select coalesce(sum(orders), 0) from {name}")[0][0])
