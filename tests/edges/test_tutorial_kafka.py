"""The chapter of the tutorial on Kafka and PostgreSQL runs as written: its worker really dies, and the table is exact."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from walk import Walk

ORDERS = 20_000
TOPIC = "tutorial-orders"
SECONDS_MAX = 30


@pytest.fixture
def walk(tmp_path: Path, kafka: str, postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    """A reader with a database and the topic of the chapter, which others may have left behind."""
    monkeypatch.setenv("KAFKA", kafka)
    monkeypatch.setenv("POSTGRES", postgres)
    delete_topic(kafka)
    made = Walk.begin(tmp_path, "04-from-kafka-to-postgresql.md")
    yield made
    made.end()
    delete_topic(kafka)


def delete_topic(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    if TOPIC in admin.list_topics(timeout=SECONDS_MAX).topics:
        admin.delete_topics([TOPIC], operation_timeout=SECONDS_MAX)[TOPIC].result(SECONDS_MAX)


@pytest.mark.timeout(400)
def test_orders_from_kafka_are_in_postgres_once_as_written(walk: Walk, postgres: str) -> None:
    kill_worker, drain = walk.commands
    said = walk.type(kill_worker)
    assert walk.replaced(said) in said
    assert "120 rows in the table, up to 12:39" in said
    said = walk.type(drain)
    assert said.splitlines()[-2:] == ["126 rows in the table, up to 12:41", "126 rows expected: exact"]
    assert "orders-ids: 1,000 duplicates" in said
    assert walk.recovered().keys() == {"orders-ids", "minutes"}

    order = runpy.run_path(str(walk.home / "produce.py"))["order"]
    made = [order(number) for number in range(ORDERS)]
    with psycopg.connect(postgres) as session:
        summed = session.execute("select sum(orders), sum(cents), count(*) from minutes").fetchone()
        countries = session.execute("select country, sum(orders) from minutes group by 1").fetchall()
    assert summed == (ORDERS, sum(one.cents for one in made), 126)
    assert dict(countries) == {name: sum(one.country == name for one in made) for name in ("DE", "FR", "IT")}
