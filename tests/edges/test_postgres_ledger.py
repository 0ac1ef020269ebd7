"""A ledger in PostgreSQL: found by the work directory alone, kept from strangers, and not held up by the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from holdfast.core import limits
from holdfast.core.errors import FencedError, HoldfastError, LedgerError, PlanError
from holdfast.ledger import epochs, groups, holder, inputs, pins, schema
from holdfast.ledger.epochs import Commit
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger, reading
from holdfast.ledger.location import POINTER_NAME, InPostgres, chosen
from holdfast.ledger.status import status
from postgres_ledger import ledger_in_postgres, ledgers, placed  # noqa: F401
from registered import register_stage


@pytest.fixture
def ledger(ledger_in_postgres: InPostgres, tmp_path: Path) -> Iterator[Ledger]:  # noqa: F811
    opened = Ledger(tmp_path)
    assert holder.take(opened, "flow") == 1
    register_stage(opened, 1, "s", None, ["source:in"])
    yield opened
    opened.close()


@contextmanager
def stopped_in_a_transaction(work_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has taken the flow and stands still with the ledger's lock in its hand."""
    program = """
import os, signal, sys
from pathlib import Path
from holdfast.core.errors import HoldfastError
from holdfast.ledger import groups, holder
from holdfast.ledger.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
mine = holder.take(ledger, "flow", by_force=True)
try:
    with ledger.write(mine) as tx:
        print("in", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        groups.all_groups(tx)
except HoldfastError as error:
    print(type(error).__name__, error.heals)
try:
    with ledger.write(mine):
        print("let in")
except HoldfastError as error:
    print(type(error).__name__)
"""
    command = [sys.executable, "-c", program, str(work_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        try:
            yield process
        finally:
            process.kill()


def awoken(process: subprocess.Popen[str]) -> list[str]:
    os.kill(process.pid, signal.SIGCONT)
    return process.communicate(timeout=60)[0].splitlines()


def cut_off(url: str, place: InPostgres) -> int:
    """End every connection that is open for a ledger; how many there were."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"
    with psycopg.connect(url, autocommit=True) as admin:
        found = admin.execute(query, [f"holdfast % {place.schema.removeprefix('holdfast_')}"[:63]])
        return len(found.fetchall())


def test_whoever_knows_the_work_directory_finds_the_ledger(
    ledger: Ledger,
    tmp_path: Path,
    ledgers: str,  # noqa: F811
) -> None:
    inputs.add_items(ledger, 1, {"in": [Item("a", 10, 1 << 40, {"refused": "torn"}), Item("b", 11, 7, {})]})
    assert not (tmp_path / "ledger.db").exists()
    found = status(tmp_path)
    refused = {"items": 1, "newest": {"a": "torn"}}
    counted = {"items": 2, "rows": 21, "bytes": (1 << 40) + 7, "lost_rows": 0}
    assert found["sources"] == {"in": {**counted, "refused": refused}}
    assert found["cursors"][0]["lag"] == {"items": 2, "rows": 21}
    password = urlsplit(ledgers).password
    assert password is not None
    assert password not in (tmp_path / POINTER_NAME).read_text()
    assert password not in repr(chosen(tmp_path, ledgers, "flow"))


def test_flows_share_a_database_and_a_schema_has_one_work_directory(tmp_path: Path, ledgers: str) -> None:  # noqa: F811
    homes = [tmp_path / name for name in ("a", "b", "again")]
    for home in homes:
        home.mkdir()
    with closing(Ledger(homes[0], chosen(homes[0], ledgers, "one"))) as one:
        holder.take(one, "one")
        with closing(Ledger(homes[1], chosen(homes[1], ledgers, "two"))) as two:
            assert holder.take(two, "two") == 1
    with pytest.raises(LedgerError, match="is the ledger of another work directory"):
        Ledger(homes[2], chosen(homes[2], ledgers, "one"))
    assert not (homes[2] / POINTER_NAME).exists()


def test_of_two_that_start_at_once_one_makes_the_ledger(tmp_path: Path, ledgers: str) -> None:  # noqa: F811
    mine, theirs = (chosen(tmp_path, ledgers, "raced") for _ in range(2))
    assert isinstance(theirs, InPostgres)
    theirs.remember()
    with pytest.raises(LedgerError, match="another process has just begun"):
        Ledger(tmp_path, mine)
    Ledger(tmp_path, chosen(tmp_path, ledgers, "raced")).close()
    assert [file.name for file in tmp_path.iterdir()] == [POINTER_NAME]


def test_a_work_directory_stays_with_its_ledger(ledger: Ledger, tmp_path: Path, ledgers: str) -> None:  # noqa: F811
    with pytest.raises(LedgerError, match="not in postgresql://x@elsewhere/db"):
        chosen(tmp_path, "postgresql://x:hidden@elsewhere/db", "flow")
    (tmp_path / "file").mkdir()
    Ledger(tmp_path / "file").close()
    with pytest.raises(LedgerError, match="cannot be moved"):
        chosen(tmp_path / "file", ledgers, "flow")


def test_data_without_its_ledger_is_not_taken_for_a_new_flow(
    ledger_in_postgres: InPostgres,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(LedgerError, match=f"its ledger, schema {ledger_in_postgres.schema} of .* is gone"):
        Ledger(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@ho:st/db",
        "postgresql://u@host/db?password=hunter2",
        "mysql://u:hunter2@host/db",
        "postgresql://u:hunter2@/db",
    ],
)
def test_a_url_that_is_refused_is_not_repeated(url: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as refused:
        chosen(tmp_path, url, "flow")
    assert "hunter2" not in f"{refused.value} {refused.value.__cause__}"


def test_a_wrong_password_is_told_at_once_and_nothing_is_written_down(tmp_path: Path, ledgers: str) -> None:  # noqa: F811
    wrong = urlsplit(ledgers)
    url = ledgers.replace(str(wrong.password), "not-the-password")
    with pytest.raises(LedgerError, match="password authentication failed") as refused:
        Ledger(tmp_path, chosen(tmp_path, url, "flow"))
    assert not refused.value.heals
    assert "not-the-password" not in f"{refused.value} {refused.value.__cause__}"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PlanError, match=r"holdfast\[postgres\]"):
        Ledger(tmp_path, chosen(tmp_path, "postgresql://u@host/db", "flow"))


def test_a_reader_sees_one_moment_and_can_write_nothing(ledger: Ledger) -> None:
    count = sa.select(sa.func.count()).select_from(schema.source_items)
    with ledger.read() as tx:
        before = tx.execute(count).scalar_one()
        inputs.add_items(ledger, 1, {"in": [Item("a", 1, 1, {})]})
        assert tx.execute(count).scalar_one() == before
    with pytest.raises(LedgerError, match="read-only"), ledger.read() as tx:
        tx.execute(sa.delete(schema.source_items))


def test_a_write_sees_what_was_committed_while_it_waited_whatever_the_server_takes_for_granted(
    tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(tmp_path, postgres, monkeypatch)
    with psycopg.connect(postgres, autocommit=True) as admin:
        name = sql.Identifier(urlsplit(postgres).path[1:])
        setting = "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'"
        admin.execute(sql.SQL(setting).format(name))
    seen: list[pins.Pinned] = []

    def sweep() -> None:
        with closing(Ledger(tmp_path)) as other, other.unfenced_write() as tx:
            seen.append(pins.pinned(tx))

    with closing(Ledger(tmp_path)) as ledger:
        with ledger.unfenced_write() as tx, psycopg.connect(postgres, autocommit=True) as admin:
            sweeper = Thread(target=sweep)
            sweeper.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while admin.execute(waiting).fetchone() == (0,):
                assert sweeper.is_alive()
                time.sleep(0.01)
            pins.pin(tx, "reader", [7], [])
        sweeper.join()
    assert seen == [pins.Pinned(frozenset({7}), frozenset())]


def test_a_holder_stopped_inside_a_transaction_loses_its_connection_and_then_the_flow(
    ledger: Ledger, tmp_path: Path
) -> None:
    with stopped_in_a_transaction(tmp_path) as zombie, closing(Ledger(tmp_path)) as other:
        assert holder.take(other, "flow", by_force=True) == 3
        assert awoken(zombie) == ["LedgerError True", "FencedError"]


def test_nobody_waits_for_ever_for_one_who_stands_still(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.LEDGER_IDLE_MS_MAX < limits.LEDGER_BUSY_MS_MAX < limits.LEDGER_STATEMENT_MS_MAX
    with stopped_in_a_transaction(tmp_path) as sleeper:
        with ledger.unfenced_write() as tx:
            assert groups.all_groups(tx)["main"].generation == 2
        assert awoken(sleeper) == ["LedgerError True", "let in"]


def test_lost_connections_are_made_again_before_a_transaction_begins(
    ledger: Ledger,
    ledgers: str,  # noqa: F811
    ledger_in_postgres: InPostgres,  # noqa: F811
) -> None:
    for act in (lambda: ledger.refuse_deposed(1), lambda: inputs.add_items(ledger, 1, {"in": []})):
        act()
        assert cut_off(ledgers, ledger_in_postgres) > 0
        act()


def test_a_write_that_is_cut_off_heals_and_leaves_nothing(
    ledger: Ledger,
    ledgers: str,  # noqa: F811
    ledger_in_postgres: InPostgres,  # noqa: F811
) -> None:
    def write() -> None:
        with ledger.write(1) as tx:
            tx.execute(sa.delete(schema.stages))
            cut_off(ledgers, ledger_in_postgres)

    with pytest.raises(LedgerError) as cut:
        write()
    assert cut.value.heals
    with ledger.read() as tx:
        assert epochs.stage_row(tx, "s").generation == 1


@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_a_commit_without_an_answer_is_repeated_and_counts_once(
    ledger: Ledger,
    ledgers: str,  # noqa: F811
    ledger_in_postgres: InPostgres,  # noqa: F811
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ledger.read() as tx:
        row, attempt = epochs.record_plan(ledger, epochs.stage_row(tx, "s"), {"ranges": {}})
    commit = Commit(row, 0, attempt, {}, None, {}, {"source:in": (0, 1)})
    real, cuts = sa.Connection.commit, iter([True])

    def cutting(connection: sa.Connection) -> None:
        cut = next(cuts, False)
        if cut and when == "after the commit":
            real(connection)
        if cut:
            cut_off(ledgers, ledger_in_postgres)
            connection.exec_driver_sql("SELECT 1")
        real(connection)

    monkeypatch.setattr(sa.Connection, "commit", cutting)
    assert epochs.commit_epoch(ledger, commit).head == 0
    assert next(cuts, None) is None
    with ledger.read() as tx:
        assert tx.execute(sa.select(schema.manifests.c.attempt)).scalars().all() == [attempt]
        assert inputs.processed(tx, "stage:s", "source:in") == 1


def test_whoever_listens_hears_of_every_commit_and_of_nothing_else(ledger: Ledger, tmp_path: Path) -> None:
    watch = ledger.watch()
    assert watch.wait(0)  # what was before is unknown
    assert not watch.wait(0.1)
    ledger.refuse_deposed(1)
    with pytest.raises(FencedError), ledger.write(7):
        pass
    assert not watch.wait(0.1)
    with closing(Ledger(tmp_path)) as other:
        inputs.add_items(other, 1, {"in": [Item("a", 1, 1, {})]})
    assert watch.wait(10)
    watch.close()


def test_whoever_lost_the_connection_takes_the_next_for_news(
    ledger: Ledger,
    ledgers: str,  # noqa: F811
    ledger_in_postgres: InPostgres,  # noqa: F811
) -> None:
    watch = ledger.watch()
    watch.wait(0)
    cut_off(ledgers, ledger_in_postgres)
    with pytest.raises(LedgerError, match="cannot be heard"):
        watch.wait(10)
    assert watch.wait(0)
    watch.close()


def test_somebody_who_only_looks_is_told_at_once_that_the_server_is_gone(
    tmp_path: Path,
    ledgers: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = placed(tmp_path, ledgers, monkeypatch)
    text = (tmp_path / POINTER_NAME).read_text()
    (tmp_path / POINTER_NAME).write_text(text.replace(str(urlsplit(ledgers).port), "1"))
    with pytest.raises(HoldfastError, match="Connection refused") as gone, reading(tmp_path):
        pass
    assert gone.value.heals
    assert str(place.password) not in str(gone.value)
