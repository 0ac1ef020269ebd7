"""`scripts/services` keeps what it promises: passwords, data and ports over a kill or a restart.

On servers of its own, since other tests are at work on the shared ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import servers

KAFKA_S_MAX = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("services")
    yield folder
    servers.services("remove", home=folder)


def address_after(home: Path, *words: str) -> str:
    """Type a command, then read where the service it names is."""
    name = words[-1]
    done = servers.services(*words, home=home)
    missing = home / name / "missing"
    if missing.exists():
        servers.be_without(name, missing.read_text().strip())
    assert done.returncode == 0, done.stderr
    return (home / name / "address").read_text().strip()


def test_postgres_asks_for_the_password(home: Path) -> None:
    url = address_after(home, "start", "postgres")
    with psycopg.connect(url) as session:
        assert session.execute("SELECT 40 + 2").fetchone() == (42,)
    wrong = url.replace(str(urlsplit(url).password), "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_postgres_keeps_committed_and_prepared_work_over_a_kill(home: Path) -> None:
    url = address_after(home, "start", "postgres")
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("CREATE TABLE kept (n int)")
        session.execute("INSERT INTO kept VALUES (1)")
        session.execute("BEGIN; INSERT INTO kept VALUES (2); PREPARE TRANSACTION 'undecided'")
    assert servers.services("kill", "postgres", home=home).returncode == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    assert address_after(home, "start", "postgres") == url
    with psycopg.connect(url, autocommit=True) as session:
        assert session.execute("SELECT n FROM kept").fetchall() == [(1,)]
        session.execute("COMMIT PREPARED 'undecided'")
        assert session.execute("SELECT n FROM kept ORDER BY n").fetchall() == [(1,), (2,)]


def test_start_is_repeatable_and_a_reused_pid_is_left_alone(home: Path) -> None:
    url = address_after(home, "start", "postgres")
    record = home / "postgres" / "process"
    truth = record.read_text()
    assert address_after(home, "start", "postgres") == url
    assert record.read_text() == truth
    record.write_text(f"{truth.split()[0]} another-boot:1\n")
    assert servers.services("kill", "postgres", home=home).returncode == 0
    record.write_text(truth)
    psycopg.connect(url).close()


def read_committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed", "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=KAFKA_S_MAX)]
    finally:
        consumer.close()


def test_kafka_keeps_transactions_over_a_restart(home: Path) -> None:
    bootstrap = address_after(home, "start", "kafka")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(KAFKA_S_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer"})
    producer.init_transactions(KAFKA_S_MAX)
    producer.begin_transaction()
    producer.produce("kept", b"aborted")
    producer.flush(KAFKA_S_MAX)
    producer.abort_transaction(KAFKA_S_MAX)
    producer.begin_transaction()
    producer.produce("kept", b"committed")
    producer.commit_transaction(KAFKA_S_MAX)
    assert read_committed(bootstrap, "kept", 1) == [b"committed"]
    assert address_after(home, "restart", "kafka") == bootstrap
    assert read_committed(bootstrap, "kept", 1) == [b"committed"]


def test_what_cannot_be_had_is_said_in_one_line_and_the_rest_starts(home: Path, monkeypatch) -> None:
    address_after(home, "stop", "kafka")
    monkeypatch.setenv("JAVA_HOME", str(home / "nowhere"))
    done = servers.services("start", home=home)
    assert (done.returncode, done.stderr) == (1, "kafka: could not be had: no java: run scripts/setup\n")
    assert done.stdout.startswith("postgres: runs on 127.0.0.1:")
