"""Describes tables of databases as sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow import table_names

_URLS = "Write it as sqlite:///out.db, or as postgresql://user:password@host/database."


@dataclass(frozen=True)
class TableSink:
    """A table of a database, upserted by key or appended to."""

    url: str = field(repr=False)  # it may hold a password
    table: str
    key: tuple[str, ...] | None = None

    @property
    def facts(self) -> Json:
        """What `explain` says of it; not the address, which may hold a password."""
        return {
            "kind": "table",
            "table": self.table,
            "key": list(self.key) if self.key else None,
            "guarantee": "exactly_once",
            "because": "the rows of an epoch and the record of it are one transaction",
        }


def table(url: str, table: str, key: str | Sequence[str] | None = None) -> TableSink:
    """Write into a table of a database. The rows of an epoch and the record of it are one transaction.

    - `url`: SQLAlchemy's, such as `sqlite:///out.db` or `postgresql://user:password@host/database`. It is shown nowhere.
    - `table`: its name, in PostgreSQL also `schema.table`. It is made if it is not there.
    - `key`: a column, or several, by which rows replace each other; null is a key like any other. Without it, the default, rows
      are appended.

    Raises `hf.PlanError` if `url` names no file or database of these two, or a name cannot be, or is Holdfast's own.

    >>> table("sqlite:///shop.db", "totals", key="user").key
    ('user',)
    """
    table_names.check(table, _backend(url))
    keys = (key,) if isinstance(key, str) else None if key is None else tuple(key)
    if keys is not None and (not keys or len({name.lower() for name in keys}) != len(keys)):
        raise PlanError(
            f"key={list(keys)} is not a list of different columns",
            operation="table",
            hint="Name the columns by which rows replace each other, or leave key out to append.",
        )
    return TableSink(url, table, keys)


def _backend(url: str) -> str:
    """Which database a URL names, if it is one that we write to."""
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise PlanError("the url is not one that SQLAlchemy reads", operation="table", hint=_URLS) from error
    shown = parsed.render_as_string(hide_password=True)
    backend, database = parsed.get_backend_name(), parsed.database
    if backend not in ("sqlite", "postgresql"):
        raise PlanError(
            f"{shown} is neither a SQLite nor a PostgreSQL database", operation="table", hint=_URLS
        )
    if backend == "postgresql" and not database:
        raise PlanError(f"{shown} does not name a database", operation="table", hint=_URLS)
    if backend == "sqlite" and (
        database in (None, "", ":memory:") or str(database).startswith("file:") or parsed.query
    ):
        raise PlanError(
            f"{shown} does not name a file",
            operation="table",
            hint="Write it as sqlite:///relative.db or sqlite:////absolute/path.db, without options: a database in "
            "memory would be lost with the process.",
        )
    return backend
