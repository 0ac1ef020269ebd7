"""The ledger in PostgreSQL takes the steps of the simulation's schedules as its model does."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.ledger.location import InPostgres
from postgres_ledger import ledger_in_postgres, ledgers  # noqa: F401
from sim.real_ledger import RealLedger
from sim.test_schedules import assert_both_answer_alike


@pytest.mark.parametrize("seed", range(6))
def test_the_ledger_in_postgres_takes_the_same_steps(
    seed: int,
    tmp_path: Path,
    ledgers: str,  # noqa: F811
    ledger_in_postgres: InPostgres,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with psycopg.connect(ledgers, autocommit=True) as eye:
        eye.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(ledger_in_postgres.schema)))
        assert_both_answer_alike(seed, lambda chain: RealLedger(chain, tmp_path, eye), monkeypatch)
