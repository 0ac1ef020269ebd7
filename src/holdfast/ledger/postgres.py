"""The ledger in PostgreSQL: one schema a flow, one writer at a time by an advisory lock.

Invariants: the first statement of a write takes the flow's lock, so that a write sees all writes before it, and tells
the listeners, at its commit, that there is news. Readers see one snapshot and wait for nobody. Every wait is bounded by
the server, for both sides: whoever stands still inside a transaction is cut off, sooner than others give up waiting
for it. A transaction that was not begun for want of a server is begun again, for a while; one that was cut off in the
middle, or whose commit got no answer, is an error that heals, and whoever asked for it looks again at what is there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.core.extras import package_of
from holdfast.core.reserved import SCHEMA_PREFIX
from holdfast.ledger import schema
from holdfast.ledger.location import PASSWORD_VARIABLE, POINTER_NAME, InPostgres
from holdfast.ledger.process import Process

if TYPE_CHECKING:
    import psycopg

# Classes and codes of errors that are the server's state, not the question's fault: connection lost (08), shutting
# down, crashed or starting (57P0*), too many connections, a lock or a statement that took too long, an idle transaction
# that was ended, a deadlock.
_HEALING = ("08", "57P01", "57P02", "57P03", "53300", "55P03", "57014", "25P03", "25P04", "40001", "40P01")

# To whom a schema belongs: the id that the work directory's `ledger.json` holds too.
_owner = sa.Table("work_directory", sa.MetaData(), sa.Column("id", sa.String, primary_key=True))

_SETTINGS = (
    "SELECT set_config('search_path', quote_ident(%(schema)s), false),"
    " set_config('lock_timeout', %(lock)s, false),"
    " set_config('statement_timeout', %(statement)s, false),"
    " set_config('idle_in_transaction_session_timeout', %(idle)s, false),"
    " CASE WHEN current_setting('synchronous_commit') = 'off'"
    " THEN set_config('synchronous_commit', 'on', false) END"
)

_LOCK = sa.text("SELECT pg_advisory_xact_lock(:key), pg_notify(:channel, '')")


class Postgres:
    """A ledger in a schema of a PostgreSQL database."""

    def __init__(self, location: InPostgres, *, writer: bool) -> None:
        _import_driver()
        self._location = location
        # Somebody who only looks is told at once, and so is whoever names a server for the first time.
        self._patience_ms = limits.LEDGER_BUSY_MS_MAX if writer and location.known else 0
        # Below 2^63, so that its two halves read as they are written in pg_locks.
        digest = hashlib.blake2b(f"holdfast ledger {location.schema}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest) >> 1
        self._engine = sa.create_engine(
            location.address,
            connect_args=_connect_arguments(location),
            # Not what the server takes for granted: a write must see what was committed while it waited for the lock.
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            max_overflow=-1,  # every loop of a worker may ask at the same time
        )
        sa.event.listen(self._engine, "connect", self._connected)
        self._readers = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    @property
    def engine(self) -> Engine:
        """What connections come from."""
        return self._engine

    @property
    def place(self) -> str:
        """The work directory, and where it says that its ledger is."""
        return f"{self._location.work_dir} (ledger in {self._location.url}, schema {self._location.schema})"

    @property
    def environment(self) -> Mapping[str, str]:
        """The password, if we were given one: it is nowhere else."""
        password = self._location.password
        return {PASSWORD_VARIABLE: password} if password else {}

    def exists(self) -> bool:
        """Whether the schema holds a ledger; refused if it is that of another work directory."""
        with self.reading() as tx:
            if not sa.inspect(tx).has_table(_owner.name, schema=self._location.schema):
                return False
            self._refuse_other_owner(tx)
            return sa.inspect(tx).has_table(schema.flow.name)

    def make(self) -> None:
        """Make the schema and the tables that are not there yet, and remember where they are.

        Nobody who finds all of it waits for the lock: whoever comes to break it must get in.
        """
        location = self._location
        if not location.known:
            location.remember()
        self._patience_ms = limits.LEDGER_BUSY_MS_MAX
        with self.reading() as tx:
            if schema.metadata.tables.keys() <= set(sa.inspect(tx).get_table_names(schema=location.schema)):
                return
        with self.writing() as tx:
            if not sa.inspect(tx).has_schema(location.schema):
                tx.execute(sa.schema.CreateSchema(location.schema))
            _owner.create(tx, checkfirst=True)
            if tx.execute(sa.select(_owner.c.id)).first() is None:
                tx.execute(sa.insert(_owner).values(id=location.id))
            self._refuse_other_owner(tx)
            schema.metadata.create_all(tx)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        with self._begun(self._readers) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer is beside."""
        mine = {"key": self._key, "channel": self._location.schema}
        with self._begun(self._engine, _LOCK, mine) as connection:
            yield connection
            connection.commit()

    def heals(self, error: DBAPIError) -> bool:
        """Whether it was the server's state. Without a code the connection failed, or was refused for good reason."""
        code = getattr(error.orig, "sqlstate", None)
        if code is not None:
            return bool(code.startswith(_HEALING))
        text = str(error.orig or error)
        lost = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
        return lost and ("FATAL" not in text or "the database system is" in text)

    def hint(self, error: DBAPIError) -> str:
        """What is wrong is the address, or what the server lets this user do."""
        return (
            f"Check the server and the address in {POINTER_NAME} or --ledger; the password comes from the URL,"
            f" {PASSWORD_VARIABLE}, PGPASSWORD or the password file. The user must be allowed to make a schema."
        )

    def free(self, gone: Process) -> None:
        """The server ends a transaction in which nothing happens by itself, soon."""

    def watch(self) -> PostgresWatch:
        """Hear of commits from now on."""
        _, address = self._engine.dialect.create_connect_args(self._location.address)
        return PostgresWatch({**address, **_connect_arguments(self._location)}, self._location.schema)

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def drop(self) -> None:
        """Remove the schema, which is this work directory's alone."""
        with self.writing() as tx:
            self._refuse_other_owner(tx)
            tx.execute(sa.schema.DropSchema(self._location.schema, cascade=True, if_exists=True))
        self.close()

    @contextmanager
    def _begun(
        self, engine: Engine, first: sa.TextClause | None = None, values: Mapping[str, object] | None = None
    ) -> Iterator[Connection]:
        """A connection whose first statement has gone through; nothing was done before, so it may be tried again."""
        deadline = time.monotonic() + self._patience_ms / 1000
        while True:
            connection = None
            try:
                connection = engine.connect()
                if first is not None:
                    connection.execute(first, values)
                break
            except DBAPIError as error:
                if connection is not None:
                    connection.close()
                gone = connection is None or error.connection_invalidated
                if not (gone and self.heals(error)) or time.monotonic() >= deadline:
                    raise
                time.sleep(limits.LEDGER_RETRY_MS / 1000)
        with connection:
            yield connection

    def _connected(self, connection: psycopg.Connection[Any], _: object) -> None:
        """Bounds that hold on the server, whatever becomes of this process."""
        settings = {
            "schema": self._location.schema,
            "lock": str(limits.LEDGER_BUSY_MS_MAX),
            "statement": str(limits.LEDGER_STATEMENT_MS_MAX),
            "idle": str(limits.LEDGER_IDLE_MS_MAX),
        }
        connection.autocommit = True
        connection.execute(_SETTINGS, settings)
        connection.autocommit = False

    def _refuse_other_owner(self, tx: Connection) -> None:
        location = self._location
        table = sa.table(_owner.name, sa.column("id"), schema=location.schema)
        owner = tx.execute(sa.select(table.c.id)).scalar_one_or_none()
        if owner is not None and owner != location.id:
            raise LedgerError(
                f"schema {location.schema} of {location.url} is the ledger of another work directory than {location.work_dir}",
                operation="open",
                hint="Give the flow another name or another database, or run it in the work directory that the ledger"
                f" belongs to: its {POINTER_NAME} has the id {owner}.",
            )


class PostgresWatch:
    """Listens on a connection of its own. What was said while there was none is taken for news."""

    def __init__(self, address: Mapping[str, Any], channel: str) -> None:
        self._address = address
        self._channel = channel
        self._link: psycopg.Connection[Any] | None = None

    def wait(self, seconds: float) -> bool:
        """Wait so long for a commit since the last call; whether there was one, or may have been."""
        import psycopg

        try:
            if self._link is None:
                self._link = self._listening()
                return True
            return bool(list(self._link.notifies(timeout=seconds, stop_after=1)))
        except psycopg.Error as error:
            self.close()
            raise LedgerError("the ledger cannot be heard", operation="ledger watch", heals=True) from error

    def close(self) -> None:
        """Hear no more."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _listening(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg import sql

        link = psycopg.connect(autocommit=True, **self._address)
        link.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        return link


def _connect_arguments(location: InPostgres) -> dict[str, Any]:
    """Who asks, for whoever looks at the server; and bounds on how long a server that is gone goes unnoticed."""
    flow = location.schema.removeprefix(SCHEMA_PREFIX)
    return {
        "application_name": f"holdfast {os.getpid()} {flow}"[:63],
        "connect_timeout": limits.LEDGER_CONNECT_MS_MAX // 1000,
        "tcp_user_timeout": limits.LEDGER_BUSY_MS_MAX,
        "keepalives_idle": limits.LEDGER_IDLE_MS_MAX // 1000,
        "keepalives_interval": limits.LEDGER_IDLE_MS_MAX // 1000,
        "keepalives_count": 2,
    }


def _import_driver() -> None:
    with package_of("postgres"):
        import psycopg  # noqa: F401
