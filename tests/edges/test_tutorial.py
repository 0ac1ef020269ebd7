"""The tutorial's chapter from Kafka to PostgreSQL runs as written: its worker really dies, and the table has what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from walk import Walk

TOPIC = "tutorial-orders"
ORDERS, USERS = 20_000, 100
KAFKA_S_MAX = 30


@pytest.fixture
def walk(kafka: str, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    """The chapter on the servers of the tests, with a database of its own."""
    monkeypatch.setenv("HOLDFAST_TEST_KAFKA", kafka)
    monkeypatch.setenv("HOLDFAST_TEST_POSTGRES", postgres)
    made = Walk.begin(tmp_path, "04-from-kafka-to-postgres.md")
    yield made
    made.end()
    AdminClient({"bootstrap.servers": kafka}).delete_topics([TOPIC])[TOPIC].exception(KAFKA_S_MAX)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_from_kafka_to_postgres_runs_as_written(walk: Walk, postgres: str) -> None:
    kill_worker, look = walk.commands
    said = walk.type(kill_worker)
    assert walk.replaced(said) in said
    said = walk.type(look)
    assert f"{ORDERS} orders: as sent" in said
    assert f"orders-ids: {ORDERS // 10:,} duplicates" in said
    assert ", not running\n" in said

    with psycopg.connect(postgres) as session:
        found = session.execute('SELECT "user", orders, cents FROM tutorial_totals ORDER BY 1').fetchall()
    numbers = {user: range(user, ORDERS, USERS) for user in range(USERS)}
    wanted = [(f"user-{user}", len(mine), sum(n % 997 for n in mine)) for user, mine in numbers.items()]
    assert found == sorted(wanted)
