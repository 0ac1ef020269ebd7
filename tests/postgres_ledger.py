"""Work directories whose ledger is in PostgreSQL, each in a schema of its own of one database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.ledger.location import PASSWORD_VARIABLE, InPostgres, chosen


@pytest.fixture(scope="module")
def ledgers(postgres_url: str) -> Iterator[str]:
    """The URL of a database for the ledgers of a file's tests: making one takes longer than most of them."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def ledger_in_postgres(tmp_path: Path, ledgers: str, monkeypatch: pytest.MonkeyPatch) -> InPostgres:
    """Whoever opens the ledger of `tmp_path` opens one in PostgreSQL."""
    return placed(tmp_path, ledgers, monkeypatch)


def without_password(url: str) -> str:
    """The URL as a command line may have it."""
    address = urlsplit(url)
    return address._replace(netloc=f"{address.username}@{address.hostname}:{address.port}").geturl()


def placed(work_dir: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> InPostgres:
    """Have the ledger of a work directory be in a new schema."""
    place = chosen(work_dir, url, uuid.uuid4().hex)
    assert isinstance(place, InPostgres)
    monkeypatch.setenv(PASSWORD_VARIABLE, place.password or "")
    place.remember()
    return place
