"""Tables of PostgreSQL through kills, zombies, lost connections and restarts: every row once, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

import servers
from edges.tables import PAIRS, Fed, read, run, staged
from holdfast.core import crashpoints, limits
from holdfast.core.errors import FencedError, SinkError
from holdfast.runtime.healing import until_healed
from holdfast.sinks import postgres_engine, reading
from holdfast.sinks.table import TableSink
from holdfast.testing.epochs import (
    FLOW,
    SCHEMA,
    expected,
    feed,
    publish_after,
    record,
    segments,
    write_segments,
)

POINTS = ("sink.before_stage", "sink.after_stage", "sink.after_publish", "sink.after_record")
KEY = ("value",)
KEYS = pytest.mark.parametrize("key", [None, KEY], ids=["appended", "upserted"])

FEEDING = """
import sys
from pathlib import Path
from holdfast.core.errors import FencedError
from holdfast.sinks.table import TableSink
from holdfast.testing.epochs import SCHEMA, feed
url, key, directory = sys.argv[1:]
try:
    feed(TableSink(url, "out", [key] if key else None, SCHEMA), Path(directory), 1)
except FencedError as error:
    print("fenced", error)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the segments of the stream are."""
    return write_segments(tmp_path / "segments")


@contextmanager
def child(
    url: str, key: tuple[str, ...] | None, directory: Path, orders: str
) -> Iterator[subprocess.Popen[str]]:
    """A process of the first generation that feeds the table, and ends or stands still where it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", FEEDING, url, "".join(key or ()), str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOLDFAST_CRASH": orders},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def table(url: str, key: tuple[str, ...] | None) -> TableSink:
    return TableSink(url, "out", key, SCHEMA)


def values(url: str) -> list[int]:
    return sorted(read(url, "out", SCHEMA)["value"].to_pylist())


def at(point: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen the first time a point is reached."""
    left = [point]

    def reach(reached: str) -> None:
        if reached in left:
            left.remove(reached)
            act()

    monkeypatch.setattr(crashpoints, "reach", reach)


def end_sessions(url: str) -> None:
    run(
        url,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where application_name like 'holdfast:%' and datname = current_database()",
    )


# Processes that end, and processes that come back


@pytest.mark.parametrize(
    ("key", "point"), [(KEY, "sink.after_stage"), (None, "sink.after_publish"), (KEY, "sink.after_record")]
)
def test_a_kill_loses_and_repeats_nothing(
    postgres: str, directory: Path, key: tuple[str, ...] | None, point: str
) -> None:
    with child(postgres, key, directory, f"{point}:2") as killed:
        assert killed.wait(timeout=60) == -signal.SIGKILL
    feed(table(postgres, key), directory, generation=2)
    assert values(postgres) == expected()
    assert staged(postgres) == 0


@pytest.mark.parametrize(
    ("key", "point"), [*((KEY, point) for point in POINTS), (None, "sink.after_publish")]
)
def test_a_process_that_is_stopped_and_replaced_changes_nothing_when_it_wakes_up(
    postgres: str, directory: Path, key: tuple[str, ...] | None, point: str
) -> None:
    """Also inside its transaction, where it holds the record locked: its successor ends it there."""
    with child(postgres, key, directory, f"{point}:3:stop") as zombie:
        os.waitpid(zombie.pid, os.WUNTRACED)
        successor = table(postgres, key)
        last = successor.open(FLOW, 0, 2)
        before = values(postgres), run(postgres, "select claim, epoch from holdfast_sinks")
        zombie.send_signal(signal.SIGCONT)
        said, _ = zombie.communicate(timeout=60)
    assert said.startswith("fenced")
    assert "by generation 2" in said
    assert (values(postgres), run(postgres, "select claim, epoch from holdfast_sinks")) == before
    publish_after(successor, last, directory, generation=2)
    assert values(postgres) == expected()


def test_staging_that_a_killed_process_left_is_cleared_by_the_next_opening_of_that_table(
    postgres: str, directory: Path
) -> None:
    with child(postgres, ("value",), directory, "sink.after_stage:1") as killed:
        killed.wait(timeout=60)
    assert staged(postgres) == 1
    TableSink(postgres, "other", ["value"], SCHEMA).open(FLOW, 0, 1)
    assert staged(postgres) == 1
    table(postgres, ("value",)).open(FLOW, 0, 2)
    assert staged(postgres) == 0


def test_an_opening_that_is_refused_ends_nobody(postgres: str, directory: Path) -> None:
    owner = table(postgres, None)
    owner.open(FLOW, 0, 2)
    sessions = "select pid from pg_stat_activity where application_name like 'holdfast:%' and datname = current_database()"
    (mine,) = run(postgres, sessions)
    for flow, generation in (("clicks", 7), (FLOW, 1)):
        other = table(postgres, None)
        with pytest.raises((SinkError, FencedError)):
            other.open(flow, 0, generation)
        other.close()
    assert run(postgres, sessions) == [mine]
    publish_after(owner, None, directory, generation=2)
    assert values(postgres) == expected()


# Locks


def test_a_record_or_a_table_that_others_hold_is_waited_for_then_said_to_heal(
    postgres: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SINK_BUSY_MS_MAX", 50)
    sink = table(postgres, None)
    sink.open(FLOW, 0, 1)
    for lock in ("select * from holdfast_sinks for update", "lock table out in share mode"):
        with psycopg.connect(postgres) as other:
            other.execute(lock)
            with pytest.raises(SinkError, match="lock timeout") as caught:
                sink.publish(record(0), segments(directory, 0))
            assert caught.value.heals
    publish_after(sink, None, directory, generation=1)
    assert values(postgres) == expected()


def test_a_session_that_stands_still_in_a_transaction_is_ended_before_others_give_up(postgres: str) -> None:
    sink = table(postgres, None)
    sink.open(FLOW, 0, 1)
    waits = run(
        postgres,
        "select 1 from pg_stat_activity where application_name like 'holdfast:%' and datname = current_database()",
    )
    assert len(waits) == 1
    with (
        postgres_engine.connect(
            postgres_engine.conninfo(postgres_engine.sa.make_url(postgres), "holdfast:test")
        ) as session,
        session.cursor() as cursor,
    ):
        cursor.execute(
            "select current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'), "
            "current_setting('synchronous_commit')"
        )
        assert cursor.fetchone() == ("10s", "5s", "on")
    assert limits.SINK_IDLE_MS_MAX < limits.SINK_BUSY_MS_MAX


# Connections


@pytest.mark.parametrize(
    ("key", "point"), [(KEY, "sink.after_stage"), (KEY, "sink.after_publish"), (None, "sink.after_publish")]
)
def test_a_connection_lost_before_the_commit_heals_and_shows_nothing(
    postgres: str, directory: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...] | None, point: str
) -> None:
    sink = table(postgres, key)
    sink.open(FLOW, 0, 1)
    at(point, lambda: end_sessions(postgres), monkeypatch)
    if point == "sink.after_publish":
        with pytest.raises(SinkError, match="terminating connection") as caught:
            sink.publish(record(0), segments(directory, 0))
        assert caught.value.heals
        assert values(postgres) == []
        assert staged(postgres) == 0 or key is None
    publish_after(sink, None, directory, generation=1)
    assert values(postgres) == expected()


@KEYS
def test_a_connection_lost_in_the_middle_of_the_rows_heals_and_shows_nothing(
    postgres: str, directory: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...] | None
) -> None:
    sink = table(postgres, key)
    sink.open(FLOW, 0, 1)
    batches = reading.batches

    def cut(*given: object) -> Iterator[object]:
        for batch in batches(*given):  # type: ignore[arg-type]
            yield batch
            end_sessions(postgres)

    with monkeypatch.context() as patched:
        patched.setattr(reading, "batches", cut)
        with pytest.raises(SinkError, match="server closed the connection|terminating connection") as caught:
            sink.publish(record(0), segments(directory, 0))
    assert caught.value.heals
    assert values(postgres) == []
    publish_after(sink, None, directory, generation=1)
    assert values(postgres) == expected()


@KEYS
def test_a_commit_whose_reply_is_lost_is_found_in_the_record(
    postgres: str, directory: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...] | None
) -> None:
    sink = table(postgres, key)
    sink.open(FLOW, 0, 1)
    commit = postgres_engine.Session.commit

    def commit_and_lose(self: postgres_engine.Session) -> None:
        commit(self)
        end_sessions(postgres)
        with self.cursor() as cursor:
            cursor.execute("select 1")

    at(
        "sink.after_publish",
        lambda: monkeypatch.setattr(postgres_engine.Session, "commit", commit_and_lose),
        monkeypatch,
    )
    with pytest.raises(SinkError) as caught:
        sink.publish(record(0), segments(directory, 0))
    assert caught.value.heals
    monkeypatch.setattr(postgres_engine.Session, "commit", commit)
    assert values(postgres) == expected(until=1)
    sink.publish(record(0), segments(directory, 0))
    assert values(postgres) == expected(until=1)
    publish_after(sink, record(0), directory, generation=1)
    assert values(postgres) == expected()


def test_a_server_that_is_restarted_is_waited_for_and_every_row_is_there_once(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server of its own, since other tests are at work on the shared one."""
    home = tmp_path / "services"
    if servers.services("start", "postgres", home=home).returncode:
        servers.be_without("postgres", "none of its own could be started")
    try:
        url = (home / "postgres" / "address").read_text().strip()
        sink = table(url, ("value",))
        restarts = [
            threading.Thread(target=servers.services, args=("restart", "postgres"), kwargs={"home": home})
        ]

        def restart() -> None:
            restarts[0].start()
            end_sessions(url)

        until_healed(lambda: sink.open(FLOW, 0, 1), threading.Event())
        at("sink.after_publish", restart, monkeypatch)
        for epoch in range(5):
            offer = lambda epoch=epoch: sink.publish(record(epoch), segments(directory, epoch))  # noqa: E731
            until_healed(offer, threading.Event())
            if epoch == 0:
                restarts[0].join()
        assert values(url) == expected()
    finally:
        servers.services("remove", "postgres", home=home)


# What is said, and what is not


SECRET = "p@ss w'rd\\%"


@pytest.mark.parametrize(
    ("change", "why", "heals"),
    [
        ({}, "authentication failed", False),
        ({"host": "127.0.0.1:1"}, "Connection refused", True),
        ({"host": "nowhere.invalid"}, "could not translate host name", False),
        ({"query": "nonsense=1"}, "invalid connection option", False),
    ],
    ids=lambda value: str(value),
)
def test_a_password_is_in_no_error_whatever_is_wrong(
    postgres: str, change: dict[str, str], why: str, heals: bool
) -> None:
    parts = urlsplit(postgres)
    host = change.get("host", f"{parts.hostname}:{parts.port}")
    secret = quote(SECRET, safe="")
    url = f"postgresql://{parts.username}:{secret}@{host}{parts.path}?{change.get('query', '')}"
    with pytest.raises(SinkError, match=why) as caught:
        TableSink(url, "out", None, SCHEMA).open(FLOW, 0, 1)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert SECRET not in shown
    assert secret not in shown
    assert "w'rd" not in shown
    assert caught.value.heals == heals


def test_a_hostile_password_opens_the_door_that_it_belongs_to(postgres: str, tmp_path: Path) -> None:
    role = "role_" + urlsplit(postgres).path.rsplit("_", 1)[-1]
    run(
        postgres,
        f"create role {role} login password 'p@ss w''rd\\%'",
        f"grant all on schema public to {role}",
    )
    try:
        parts = urlsplit(postgres)
        url = f"postgresql://{role}:{quote(SECRET, safe='')}@{parts.hostname}:{parts.port}{parts.path}"
        fed = Fed(tmp_path, url, "mine", PAIRS).open()
        fed.give([(1, "x", 1)])
        assert fed.rows() == [(1, "x", 1)]
        with pytest.raises(SinkError, match="permission denied") as caught:
            Fed(tmp_path, url, "upserted", PAIRS, ["a"]).open().give([(1, "x", 1)])
        assert "docs/POSTGRES.md" in str(caught.value.hint)
        fed.sink.close()
    finally:
        end_sessions(postgres)
        run(postgres, f"drop owned by {role}", f"drop role {role}")
