"""What needs no Spark is told before Spark is started: by `flow.run`, `holdfast run` and `holdfast explain`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext

import holdfast as hf
from command import holdfast
from holdfast.core.errors import HoldfastError, InputError, PlanError, SinkError
from holdfast.flow.planner import plan
from holdfast.ledger import holder, inputs, source_schemas
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.source_schemas import SourceSchema
from holdfast.runtime import early, worker
from holdfast.runtime.schemas import with_schemas

FLOW = """
import holdfast as hf
flow = hf.Flow("orders")
orders = flow.source("orders", hf.files("in/", {source}))
orders.group_by("{key}").agg(n=hf.count(), total=hf.sum("{value}")).named("totals").to(hf.parquet("{out}"))
"""
GOOD = {
    "source": 'schema="id string, user string, qty int, ts timestamp"',
    "key": "user",
    "value": "qty",
    "out": "out/",
}
ORDER = pa.table({"id": ["a"], "user": ["u"], "qty": [1], "ts": pa.array([1_000], pa.timestamp("ns"))})


class SparkStartedError(Exception):
    """Somebody wanted a session."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to type commands in, where Spark cannot be started."""

    def refuse(*_: object) -> None:
        raise SparkStartedError

    monkeypatch.setattr(worker, "make_session", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: str, table: pa.Table) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    pq.write_table(table, file)


def missing_directory() -> None:
    pass


def an_unfit_file() -> None:
    wrong = ORDER.rename_columns(["id", "usr", "qty", "ts"]).set_column(2, "qty", pa.array([2**40]))
    write("in/a.parquet", wrong)
    write("in/b.parquet", wrong)
    write("in/c.parquet", ORDER)


def a_file_in_the_way() -> None:
    write("in/a.parquet", ORDER)
    Path("out").write_text("")


def empty_directory() -> None:
    Path("in").mkdir()


def a_file_of_csv() -> None:
    Path("in").mkdir()
    Path("in/a.csv").write_text("id,user,qty\nx,y,1\n")


CASES: list[tuple[Callable[[], None], dict[str, str], str, str]] = [
    (missing_directory, {}, "source 'orders' cannot list", "Make the directory, or mend the path"),
    (empty_directory, {"source": 'schema="id strng, qty int"'}, "cannot be read: column 'id' has the type 'strng'", "Say string for strng."),
    (empty_directory, {"key": "usr"}, "there is no column 'usr' to group by", "Did you mean 'user' for 'usr'?"),
    (an_unfit_file, {}, ("it has no column 'user': its columns are id, usr, qty, ts; column 'qty' is int64 in the file and declared as int,"
                        " which does not hold 1099511627776 (one other file has problems too: b.parquet)"),
     'schema="id string, usr string, qty bigint, ts timestamp"'),
    (a_file_in_the_way, {}, "sink 'totals-sink-1' cannot write to out/", "Name another target"),
    (empty_directory, {"source": ""}, "has no schema=, and", "Put the first file there"),
    (a_file_of_csv, {"source": 'format="csv"'}, "CSV files do not say", 'looks like schema="id string, user string, qty bigint"'),
    (an_unfit_file, {"source": ""}, "cannot be inferred: c.parquet has no column 'usr'", "Write what you mean"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words", "message", "hint"), CASES)
def test_it_is_told_by_run_in_a_process_and_by_explain_without_a_session(
    home: Path, make: Callable[[], None], words: dict[str, str], message: str, hint: str
) -> None:
    make()
    session = SparkContext._active_spark_context
    text = FLOW.format(**{**GOOD, **words})
    Path("orders_flow.py").write_text(text)
    names: dict[str, hf.Flow] = {}
    exec(text, names)
    with pytest.raises(HoldfastError) as caught:
        names["flow"].run("elsewhere", until_idle=True)
    told = caught.value
    assert message in told.message
    assert hint in str(told.hint)
    said = holdfast("explain", "orders_flow.py", "--json")
    problem = said.error if said.status else said.json["problems"][0]
    assert (problem["message"], problem["hint"]) == (told.message, told.hint)
    assert holdfast("explain", "--check", "orders_flow.py").status == 1
    assert SparkContext._active_spark_context is session


def test_the_command_tells_it_before_any_worker_is_started(home: Path) -> None:
    Path("orders_flow.py").write_text(FLOW.format(**GOOD))
    nowhere = {**os.environ, "JAVA_HOME": str(home / "no-java")}
    command = [sys.executable, "-m", "holdfast", "run", "orders_flow.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=nowhere, check=False)
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert not Path("work").exists()


def test_a_flow_that_is_in_order_comes_as_far_as_spark(home: Path) -> None:
    write("in/a.parquet", ORDER)
    for source in (GOOD["source"], ""):
        names: dict[str, hf.Flow] = {}
        exec(FLOW.format(**{**GOOD, "source": source}), names)
        with pytest.raises(SparkStartedError):
            names["flow"].run("work/orders")
    with reading(home / "work" / "orders") as tx:
        found = source_schemas.recorded(tx)
    assert found == {"orders": SourceSchema("id string, user string, qty bigint, ts timestamp", 1)}


def sources(schema: str | None) -> hf.Flow:
    flow = hf.Flow("orders")
    flow.source("orders", hf.files("in/", schema=schema)).to(hf.discard())
    return flow


def test_what_was_inferred_holds_for_files_that_come_later(home: Path) -> None:
    write("in/a.parquet", ORDER)
    ledger = Ledger(home)
    holder.take(ledger, "orders", by_force=False)
    inferred = "id string, user string, qty bigint, ts timestamp"
    assert early.ready(plan(sources(None)), ledger).sources["orders"].schema == inferred  # type: ignore[union-attr]
    write("in/b.parquet", ORDER.append_column("more", pa.array([1])))
    assert early.ready(plan(sources(None)), ledger).sources["orders"].schema == inferred  # type: ignore[union-attr]
    write("in/c.parquet", ORDER.drop_columns(["user"]))
    with pytest.raises(InputError, match="c.parquet: it has no column 'user'"):
        early.ready(plan(sources(None)), ledger)
    told = early.before(home, plan(sources(None))).schemas["orders"]
    assert told == SourceSchema(inferred, 1)
    same = with_schemas(plan(sources("id STRING, user string,  qty long, ts timestamp")), ledger)
    assert same.sources["orders"].schema == inferred  # type: ignore[union-attr]
    other = with_schemas(plan(sources("id string, qty int")), ledger)
    assert other.sources["orders"].schema == "id string, qty int"  # type: ignore[union-attr]
    ledger.close()


def test_files_that_an_epoch_has_read_are_not_judged_anew(home: Path) -> None:
    write("in/a.parquet", ORDER)
    ledger = Ledger(home)
    generation = holder.take(ledger, "orders", by_force=False)
    inputs.add_items(ledger, generation, {"orders": [Item("a.parquet", 1, 1, {"bytes": 1, "mtime_ns": 1})]})
    wider = plan(sources("id string, more string"))
    with pytest.raises(InputError, match="it has no column 'more'"):
        early.ready(wider, ledger)
    known = early.before(home, wider)
    assert early.problems(wider, early.Before(known=known.known)) == []
    ledger.close()


def test_several_problems_come_in_one_error(home: Path) -> None:
    flow = sources("id string")
    flow.source("more", hf.files("more/", schema="a int")).to(hf.parquet("in.py/out"))
    Path("in.py").write_text("")
    with pytest.raises(InputError, match="cannot list .*/in: No such file") as caught:
        flow.run("work")
    assert "Also: source 'more' cannot list" in str(caught.value.hint)
    assert "Also: sink 'rows-2-sink-1' cannot write to in.py/out" in str(caught.value.hint)


def test_the_kinds_of_errors_say_whose_fault_it_is(home: Path) -> None:
    with pytest.raises(PlanError):
        sources("a nonsense").run("work")
    empty_directory()
    flow = sources("a int")
    flow.source("rows", hf.rows([{"a": 1}])).to(hf.table("sqlite:///file/out.db", "t"))
    Path("file").write_text("")
    with pytest.raises(SinkError, match="file is not a directory"):
        flow.run("work")


def test_no_ledger_is_a_sink_neither_the_flows_own_nor_a_copy(home: Path) -> None:
    Path("in").mkdir()
    for number, database in enumerate(("work/ledger.db", "copy.db")):
        flow = hf.Flow("f")
        flow.source("rows", hf.files("in/", schema="id string")).to(
            hf.table(f"sqlite:///{database}", "events")
        )
        with pytest.raises(SinkError, match=f"cannot write to {database}: it is the ledger of a flow"):
            flow.run("work", until_idle=True)
        if number == 0:
            Path("copy.db").write_bytes(Path("work/ledger.db").read_bytes())
