"""A package that only some flows need, and that is missing, is named with the extra that brings it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clients import kafka
from holdfast.core.errors import PlanError
from holdfast.core.extras import package_of
from holdfast.ledger import postgres
from holdfast.sinks.databases import database_of

EXTRAS = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
MISSING: dict[str, tuple[str, str, Callable[[], object]]] = {
    "kafka": ("kafka", "confluent_kafka", kafka.client),
    "a ledger in PostgreSQL": ("postgres", "psycopg", postgres._import_driver),
    "a table of PostgreSQL": (
        "postgres",
        "adbc_driver_postgresql",
        lambda: database_of("postgresql://me@host/db", "t", None),
    ),
}


@pytest.mark.parametrize(("extra", "package", "use"), MISSING.values(), ids=MISSING)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, extra: str, package: str, use: Callable[[], object]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("holdfast.sinks.postgres", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PlanError, match=f"the package {package} is not installed") as caught:
        use()
    assert caught.value.hint == f"pip install 'holdfast[{extra}]'"
    assert extra in EXTRAS


def test_a_module_of_ours_that_is_missing_is_a_fault_and_no_matter_of_extras() -> None:
    with pytest.raises(ModuleNotFoundError), package_of("kafka"):
        importlib.import_module("holdfast.nothing_of_this_name")
