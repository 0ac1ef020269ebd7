"""What tests get of the shared servers is theirs alone, and is gone after them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

import servers

left_behind: list[str] = []


def test_a_database_is_empty_and_may_be_left_in_the_middle_of_something(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as session:
        session.execute("CREATE TABLE t (n int)")
        session.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left'")
    left_behind.append(urlsplit(postgres).path.lstrip("/"))


def test_a_database_is_dropped_after_its_test(postgres_url: str) -> None:
    if not left_behind:
        pytest.skip("needs the test before it, in the same process")
    with psycopg.connect(postgres_url) as session:
        found = session.execute("SELECT datname FROM pg_database WHERE datname = ANY(%s)", [left_behind])
        assert found.fetchall() == []


def test_a_topic_has_the_partitions_it_was_asked_for(kafka: str, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    admin = AdminClient({"bootstrap.servers": kafka})
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3


def test_the_end_of_a_run_counts_the_tests_that_a_server_was_missing_for() -> None:
    reason = "services: kafka could not be had (no mvn)"
    reports = [SimpleNamespace(longrepr=("file", 1, f"Skipped: {why}")) for why in (reason, reason, "slow")]
    assert servers.skipped(reports) == [f"{reason}: 2 tests skipped"]
