"""Databases and topics of a test's own, on servers that all tests share.

`scripts/services start` starts the servers, and so does `make test`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

import servers

KAFKA_S_MAX = 30


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The server's own database, as its administrator."""
    return servers.find("postgres")


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.OwnServers]:
    """Servers that only this module uses, so that it may restart them."""
    own = servers.OwnServers(tmp_path_factory.mktemp("services"))
    yield own
    servers.services("remove", home=own.home)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database, dropped after the test with all that is open in it."""
    name = f"test_{uuid.uuid4().hex}"
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield url
    roll_back_prepared(url)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def roll_back_prepared(url: str) -> None:
    """End what was prepared and never decided: no force drops a database that holds such a transaction."""
    with psycopg.connect(url, autocommit=True) as session:
        for (gid,) in session.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ):
            session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


@pytest.fixture(scope="session")
def kafka() -> str:
    """The bootstrap servers."""
    return servers.find("kafka")


@pytest.fixture
def topic(kafka: str) -> Iterator[Callable[..., str]]:
    """Makes topics, `topic(partitions=3)`, and returns their names; deletes them after the test."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made: list[str] = []

    def make(partitions: int = 1, **config: str) -> str:
        name = f"test-{uuid.uuid4().hex}"
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        admin.create_topics([wanted])[name].result(KAFKA_S_MAX)
        made.append(name)
        wait_for_leaders(admin, name, partitions)
        return name

    yield make
    for deletion in admin.delete_topics(made).values() if made else ():
        deletion.result(KAFKA_S_MAX)


def wait_for_leaders(admin: AdminClient, name: str, partitions: int) -> None:
    """A topic is made before every request knows of it."""
    deadline = time.monotonic() + KAFKA_S_MAX
    while time.monotonic() < deadline:
        seen = admin.list_topics(name, timeout=KAFKA_S_MAX).topics[name].partitions
        if sum(partition.leader >= 0 for partition in seen.values()) == partitions:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{name} has no leader for each of its {partitions} partitions")
