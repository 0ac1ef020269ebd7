"""What the documentation shows runs as written, and what it links to is there."""

from __future__ import annotations

import re
import runpy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from batch import read_sink, write_files
from command import holdfast
from holdfast.sources.generated_rows import BLOCK_ROWS, Columns
from pages import blocks, shell

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


@pytest.fixture
def execute(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Writes a page's code into a file and runs that as a program would, but on the session of the tests."""
    run = hf.Flow.run
    monkeypatch.setattr(hf.Flow, "run", lambda flow, *given, **named: run(flow, *given, spark=spark, **named))
    monkeypatch.chdir(tmp_path)

    def execute(name: str, code: str) -> None:
        (tmp_path / name).write_text(code)
        runpy.run_path(str(tmp_path / name), run_name="__main__")

    return execute


def orders(*rows: tuple[str, str, float, int, int]) -> pa.Table:
    """Orders by id, user, amount, quantity and second."""
    ids, users, amounts, quantities, seconds = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))
    return pa.table(
        {"id": ids, "user": users, "amount": amounts, "qty": pa.array(quantities, pa.int32()), "ts": times}
    )


@pytest.mark.timeout(500)
def test_the_readmes_flow_and_commands_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(blocks(ROOT / "README.md", "python")[0])
    write_files(
        tmp_path / "in", [orders(("a", "x", 2.0, 1, 5), ("b", "y", -1.0, 1, 5), ("c", "x", 0.5, 4, 9))]
    )
    assert re.search(r"^totals +1 +2 ", shell(tmp_path, "python orders.py"), re.MULTILINE), "epochs, rows"
    write_files(tmp_path / "in", [orders(("a", "x", 2.0, 1, 5), ("d", "z", 1.0, 1, 70))], first=1)
    commands = next(block for block in blocks(ROOT / "README.md", "sh") if "holdfast run" in block)
    for command in commands.strip().splitlines():
        said = shell(tmp_path, command)
    assert "totals" in said
    assert "1 duplicates" in said
    (row,) = read_sink(tmp_path / "out").to_pylist()
    assert (row["user"], row["total"], row["n"], row["top"]) == ("x", 4.0, 2, 2.0)
    assert (row["window_start"].second, row["window_end"].minute) == (0, 1)


@pytest.mark.timeout(300)
def test_the_aggregates_and_totals_run_as_written(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    code, keyed = blocks(ROOT / "docs" / "AGGREGATES.md", "python")
    seconds = [5, 50, 5, 3700]
    visits = pa.table(
        {
            "user": ["x", "y", None, "x"],
            "page": ["a1/home", "a1/home", "a1/home", "a1/away"],
            "ms": pa.array([10, 30, 1, 20], pa.int32()),
            "at": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        }
    )
    write_files(tmp_path / "in", [visits.slice(0, 3), visits.slice(3)])
    execute("visits.py", code.replace("if __name__", f"{keyed}\nif __name__"))
    last = read_sink(tmp_path / "per_site").sort_by("epoch").to_pylist()[-1]
    found = [last[name] for name in ("site", "n", "users", "pairs", "slowest", "newest")]
    assert found == ["a1", 3, 2, 3, 30, "a1/away"]
    lists = [last[name] for name in ("pages", "path", "slow_pages")]
    assert lists == [["a1/away", "a1/home"], ["a1/home"] * 2 + ["a1/away"], ["a1/home", "a1/away"]]
    assert last["ms_median"] == pytest.approx(20, rel=0.01)
    assert last["ms_high"] == pytest.approx([28, 29.8], rel=0.001)
    assert read_sink(tmp_path / "total").sort_by("epoch")["n"].to_pylist() == [2, 3]
    busy = read_sink(tmp_path / "busy").sort_by("window_start")
    assert (busy["n"].to_pylist(), busy["users"].to_pylist()) == ([2, 1], [2, 1])
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        assert database.execute("select name, n, ms from totals").fetchall() == [("all", 3, 60)]


@pytest.mark.timeout(300)
def test_the_enriched_flow_runs_as_written(tmp_path: Path, execute: Callable[[str, str], None]) -> None:
    code = blocks(ROOT / "docs" / "ENRICH.md", "python")[0]
    orders = pa.table({"id": [1, 2, 3], "country": ["DE", "XX", "DE"], "amount": [10.0, 20.0, 30.0]})
    write_files(tmp_path / "orders", [orders])
    (tmp_path / "countries").mkdir()
    (tmp_path / "countries" / "all.csv").write_text("code,name,vat\nDE,Germany,0.5\nFR,France,0.2\n")
    execute("shop.py", code)
    named = read_sink(tmp_path / "named").sort_by("id")
    assert named["name"].to_pylist() == ["Germany", None, "Germany"]
    assert named["total"].to_pylist() == [15.0, 20.0, 45.0]
    totals = {
        one["name"]: (one["n"], one["amount"]) for one in read_sink(tmp_path / "per_country").to_pylist()
    }
    assert totals == {"Germany": (2, 40.0), None: (1, 20.0)}


@pytest.mark.timeout(300)
def test_the_event_time_flow_runs_as_written(tmp_path: Path, execute: Callable[[str, str], None]) -> None:
    code = blocks(ROOT / "docs" / "EVENT_TIME.md", "python")[0]
    hour = 3600
    seconds = [hour + 5, hour + 50, hour + 5, hour + 65, 2 * hour + 1, 30]
    clicks = pa.table(
        {
            "id": ["a", "b", "a", "c", "d", "old"],
            "user": ["x"] * 6,
            "ms": pa.array([10, 30, 10, 20, 5, 1], pa.int32()),
            "at": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        }
    )
    write_files(tmp_path / "in", [clicks.slice(0, 4), clicks.slice(4, 1), clicks.slice(5, 1)])
    execute("clicks.py", code)
    per_minute = read_sink(tmp_path / "per_minute").sort_by("window_start")
    assert (per_minute["n"].to_pylist(), per_minute["slowest"].to_pylist()) == ([2, 1, 1], [30, 20, 5])
    busiest = read_sink(tmp_path / "busiest").sort_by("window_start")
    assert (busiest["minutes"].to_pylist(), busiest["most"].to_pylist()) == ([2, 1], [2, 1])
    assert read_sink(tmp_path / "late")["id"].to_pylist() == ["old"]


@pytest.mark.timeout(300)
def test_the_flows_of_the_sources_page_run_as_written(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    payments, _, demo = blocks(ROOT / "docs" / "SOURCES.md", "python")
    (tmp_path / "in").mkdir()
    lines = [
        "id,account,amount,at",
        "1,x,2.50,2026-01-01T10:00:00Z",
        "2,x,lots,2026-01-01T10:00:00Z",
        "3,y,1,",
    ]
    (tmp_path / "in" / "a.csv").write_text("\n".join(lines))
    (tmp_path / "in" / "b.csv").write_text("account,id\nx,1\n")
    execute("payments.py", payments)
    balances = {
        row["account"]: (str(row["total"]), row["n"]) for row in read_sink(tmp_path / "balances").to_pylist()
    }
    assert balances == {"x": ("2.50", 1), "y": ("1.00", 1)}
    reasons = {row["file"]: row["reason"] for row in read_sink(tmp_path / "malformed").to_pylist()}
    assert reasons["a.csv"] == "amount is no decimal(10,2): lots"
    assert reasons["b.csv"].startswith("its header names the columns account, id")
    said = shell(tmp_path, "holdfast status --work-dir work/")
    assert "payments-quarantine: 1 files refused, 1 malformed" in said
    assert "source payments: 1 files set aside" in said
    execute("demo.py", demo.replace("work/", "work-demo/"))
    newest: dict[str, int] = {}
    for row in read_sink(tmp_path / "totals").sort_by("epoch").to_pylist():
        newest[row["user"]] = row["n"]
    assert len(newest) == 100
    assert 18_800 < sum(newest.values()) < 19_200


@pytest.mark.timeout(300)
def test_the_flow_of_the_sinks_page_runs_as_written(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    code = blocks(ROOT / "docs" / "SINKS.md", "python")[0]
    amounts = pa.array([Decimal("99.50"), Decimal("100.00"), Decimal("1.00")], pa.decimal128(10, 2))
    times = pa.array([0, 1, 2], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": ["a", "b", "c"], "user": ["x", None, "x"], "amount": amounts, "ts": times})
    for number in range(2):
        write_files(tmp_path / "in", [rows], first=number)
        execute("shop.py", code)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        totals = shop.execute("select * from totals order by n").fetchall()
        large = shop.execute("select id, amount from large_orders").fetchall()
    assert totals == [(None, "200.00", 2), ("x", "201.00", 4)]
    assert large == [("b", "100.00")] * 2
    assert (tmp_path / "notified.txt").read_text() == "shop:large-sink-2:0:0:0 1\nshop:large-sink-2:0:1:0 1\n"
    assert read_sink(tmp_path / "changes").num_rows == 4


@pytest.mark.timeout(300)
def test_the_join_runs_as_written(tmp_path: Path, execute: Callable[[str, str], None]) -> None:
    code = blocks(ROOT / "docs" / "EVENT_TIME.md", "python")[1]

    def table(times: list[int], **columns: list[object]) -> pa.Table:
        at = pa.array([second * 1_000_000 for second in times], pa.timestamp("us", "UTC"))
        return pa.table({**columns, "at": at})

    hour = 3600
    amounts = pa.array([5, 7, 9, 1], pa.int32())
    orders = table([hour, hour + 60, 3 * hour], order=["a", "b", "c"], user=["x", "y", "x"])
    payments = table([hour + 90, hour + 91, 3 * hour, 30], order=["a", "a", "z", "a"]).add_column(
        1, "amount", amounts
    )
    write_files(tmp_path / "orders", [orders.slice(0, 2), orders.slice(2)])
    write_files(tmp_path / "payments", [payments.slice(0, 3)])
    execute("shop.py", code)
    write_files(tmp_path / "payments", [payments.slice(3)], first=1)
    execute("shop.py", code)
    found = read_sink(tmp_path / "paid").drop(["epoch"])
    assert found.column_names == ["order", "user", "at", "amount", "at_right"]
    pairs = zip(found["order"].to_pylist(), found["amount"].to_pylist(), strict=True)
    assert sorted(pairs, key=str) == [("a", 5), ("a", 7), ("b", None), ("c", None)]
    assert read_sink(tmp_path / "late_payments")["amount"].to_pylist() == [1]
    unpaid = read_sink(tmp_path / "unpaid").drop(["epoch"])
    assert unpaid.column_names == ["order", "user", "at"]
    assert sorted(unpaid["order"].to_pylist()) == ["b", "c"]


@pytest.mark.timeout(300)
def test_the_hours_of_the_substreams_page_leave_when_they_end(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    code = blocks(ROOT / "docs" / "SUBSTREAMS.md", "python")[0]
    hour = 3600
    seconds = [14 * hour + 60, 14 * hour + 3599, 15 * hour + 5, 15 * hour + 700]
    times = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": list("abcd"), "user": list("xxyx"), "amount": [1.5, 2.0, 4.0, 8.0], "ts": times})
    write_files(tmp_path / "in", [rows.slice(0, 3), rows.slice(3)])
    execute("orders.py", f'{code}\nflow.run("work/", until_idle=True)\n')
    (row,) = read_sink(tmp_path / "out").to_pylist()
    assert (row["substream"], row["user"], row["spent"]) == ("1970-01-01T14:00:00Z", "x", 3.5)
    assert "flow orders: 1 open, 1 closed" in holdfast("substreams").out


@pytest.mark.timeout(300)
def test_the_flows_of_the_recovery_page_run_as_written(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    """All but the last, which is refused: tests/unit/flow/test_recovery_page.py."""
    shop, ledger, clicks, _ = blocks(ROOT / "docs" / "RECOVERY.md", "python")
    times = pa.array([second * 1_000_000 for second in (5, 5, 7200)], pa.timestamp("us", "UTC"))
    amounts = pa.array([Decimal("1.50"), Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2))
    orders = pa.table({"id": ["a", "a", "b"], "user": ["x", "x", "y"], "amount": amounts, "ts": times})
    write_files(tmp_path / "in", [orders])
    execute("shop.py", f'{shop}\nflow.run("work-shop/", until_idle=True)\n')
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        totals = database.execute("select * from totals order by user").fetchall()
    assert totals == [("x", "1.50"), ("y", "2.00")]
    assert [(row["user"], row["n"]) for row in read_sink(tmp_path / "hourly").to_pylist()] == [("x", 1)]

    write_files(tmp_path / "payments", [pa.table({"account": ["x", "x", "y"], "amount": amounts})])
    moved = ledger.replace("/mnt/backup/ledger", str(tmp_path / "backup"))
    execute("ledger.py", f'{moved}\nledger.run("work-ledger/", until_idle=True)\n')
    balances = {row["account"]: str(row["balance"]) for row in read_sink(tmp_path / "balances").to_pylist()}
    assert balances == {"x": "3.00", "y": "2.00"}
    assert list((tmp_path / "backup").rglob("*.arrow"))

    write_files(
        tmp_path / "clicks", [pa.table({"id": ["a", "a", "b"], "page": ["p", "p", "q"], "at": times})]
    )
    execute("clicks.py", f'{clicks}\nflow.run("work-clicks/", until_idle=True)\n')
    for sink, counts in (("pages", {"p": 1, "q": 1}), ("minutes", {"p": 1})):
        found = {row["page"]: row["n"] for row in read_sink(tmp_path / sink).to_pylist()}
        assert found == counts


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    named = re.findall(
        r"`((?:core|flow|protocols|ledger|storage|state|channels|spark|sources|sinks|runtime|verify)/\w+\.py)`",
        text,
    )
    assert [name for name in named if not (ROOT / "src" / "holdfast" / name).exists()] == []


def test_the_makefile_has_what_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets


@pytest.mark.timeout(300)
def test_the_flow_with_an_operator_of_its_own_runs_as_written(
    tmp_path: Path, execute: Callable[[str, str], None]
) -> None:
    code = blocks(ROOT / "docs" / "OWN_OPERATORS.md", "python")[0]
    users = ["a", "b", "a", "a", "b", "c"]
    good = [False, False, False, False, True, False]
    times = pa.array([i * 1_000_000 for i in range(6)], pa.timestamp("us", "UTC"))
    write_files(tmp_path / "in", [pa.table({"user": users, "ok": good, "ts": times})])
    execute("logins.py", code)
    (row,) = read_sink(tmp_path / "out").to_pylist()
    assert (row["user"], row["n"]) == ("a", 3)


@pytest.mark.timeout(300)
def test_the_loop_runs_as_written(tmp_path: Path, execute: Callable[[str, str], None]) -> None:
    code = blocks(ROOT / "docs" / "CYCLES.md", "python")[0]
    write_files(tmp_path / "in", [pa.table({"k": [7, 8], "n": [3, 1]})])
    execute("countdown.py", code)
    found = read_sink(tmp_path / "out")
    pairs = zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)
    assert sorted(pairs) == [(7, 0), (7, 1), (7, 2), (8, 0)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_worked_example_of_snapshots_runs_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "SNAPSHOTS.md"
    (tmp_path / "shop.py").write_text(blocks(page, "python")[0])
    created, restored = (shell(tmp_path, block) for block in blocks(page, "sh"))
    assert "(before-upgrade) is complete after" in created
    first = re.search(r"newest epoch (\d+)", created)
    captured = re.search(r"stage totals: up to epoch (\d+)", created)
    assert first, "it was captured before the first epoch"
    assert captured, created
    assert int(captured[1]) >= int(first[1])
    assert re.search(r"needed by: .*whoever asked for it", created)
    assert "flow shop would return to snapshot" in restored
    assert "name another target for it before the flow runs again" in restored
    assert "(before-upgrade), which was done, is forgotten." in restored
    with closing(sqlite3.connect(tmp_path / "shop-2.db")) as shop:
        users, orders = shop.execute("select count(*), sum(orders) from totals").fetchone()
    assert users == 50
    assert orders == different_ids(tmp_path / "shop.py")


def different_ids(flow: Path) -> int:
    """How many different orders the page's source generates."""
    description = runpy.run_path(str(flow))["orders"].node.description
    columns = Columns("orders", description.recipe, orders_schema())
    rows = [columns.block(number) for number in range(-(-description.rows // BLOCK_ROWS))]
    ids = pa.Table.from_batches(rows).slice(0, description.rows)["id"]
    return int(pc.count_distinct(ids).as_py())


def orders_schema() -> pa.Schema:
    kinds = {"id": pa.string(), "user": pa.string(), "amount": pa.float64(), "qty": pa.int32()}
    return pa.schema([*kinds.items(), ("ts", pa.timestamp("us", "UTC"))])
