"""SQLAlchemy on the ADBC driver of PostgreSQL: one connection both carries rows as Arrow and runs our statements.

Rows and the sink's record are one transaction, so they must go through one connection, and only this driver copies
Arrow. Every wait of a session of ours has a bound: for a lock, inside a transaction that nobody goes on with, and for
an answer from a server that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql
import sqlalchemy as sa
from adbc_driver_manager import AdbcStatusCode
from adbc_driver_postgresql import StatementOptions, dbapi
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import URL, Engine

from holdfast.core import limits

# A setting of the server's or of the role's that gives up what was committed would let the record forget an epoch.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class Session(dbapi.Connection):
    """A connection. The driver copies what a query returns, and there are statements that cannot be copied."""

    def cursor(self, **options: Any) -> dbapi.Cursor:
        """A cursor for any statement, and for rows that are ingested."""
        made = super().cursor(**options)
        made.adbc_statement.set_options(**{StatementOptions.USE_COPY.value: "false"})
        return made


class Dialect(PGDialect):
    """What SQLAlchemy has to know of the driver."""

    driver = "holdfast"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        """The driver."""
        return dbapi

    def is_disconnect(self, e: Any, connection: object, cursor: object) -> bool:
        """Whether the connection is of no use any more."""
        return is_lost(e)


registry.register("postgresql.holdfast", __name__, "Dialect")


def conninfo(url: URL, application: str) -> str:
    """A URL in the words of libpq, with bounds on what may be waited for; what the URL itself says goes before."""
    busy, idle = limits.SINK_BUSY_MS_MAX, limits.SINK_IDLE_MS_MAX
    said = {name: str(value) for name, value in url.query.items()}
    parts = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    wanted = {
        "connect_timeout": busy // 1000 or 1,
        "tcp_user_timeout": limits.SINK_SILENCE_MS_MAX,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        **said,
        **{name: value for name, value in parts.items() if value is not None},
        "dbname": url.database,
        "application_name": application,
        "options": f"{said.get('options', '')} -c lock_timeout={busy} -c idle_in_transaction_session_timeout={idle}",
    }
    return " ".join(f"{name}={_literal(value)}" for name, value in wanted.items())


def connect(info: str) -> Session:
    """A connection that does not forget what it has committed."""
    database = adbc_driver_postgresql.connect(info)
    try:
        session = Session(database, adbc_driver_manager.AdbcConnection(database))
    except Exception:
        database.close()
        raise
    with session.cursor() as cursor:
        cursor.execute(_DURABLE)
    session.commit()
    return session


def engine(info: str) -> Engine:
    """One connection that is kept from epoch to epoch: to make one takes longer than a small epoch."""
    return sa.create_engine(
        "postgresql+holdfast://",
        creator=lambda: connect(info),
        paramstyle="numeric_dollar",
        pool_size=1,
        max_overflow=1,
        pool_pre_ping=True,
    )


def is_lost(error: BaseException) -> bool:
    """Whether an error of the driver says that there is no server at the other end, or none that goes on with us."""
    if not isinstance(error, adbc_driver_manager.Error):
        return False
    return error.status_code == AdbcStatusCode.IO and error.sqlstate is None


def diagnosis(error: adbc_driver_manager.Error) -> Mapping[str, str]:
    """What the server said, field by field (`MESSAGE_PRIMARY`, `CONTEXT` and so on)."""
    found = {_text(name): _text(value) for name, value in error.details or ()}
    return {name.removeprefix("PG_DIAG_"): value for name, value in found.items()}


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _literal(value: object) -> str:
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
