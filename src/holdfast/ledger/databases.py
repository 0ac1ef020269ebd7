"""What the ledger needs of a database, and how its errors are told.

Two keep it: SQLite (`ledger/sqlite.py`) and PostgreSQL (`ledger/postgres.py`). Both give readers one consistent view
that waits for nobody, let one writer in at a time, and bound every wait: a process that stands still inside a
transaction is ended there, or its connection, before those who wait for it give up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from holdfast.core.errors import LedgerError
from holdfast.ledger.location import InFile, Location
from holdfast.ledger.process import Process


class Watch(Protocol):
    """Hears of commits, whoever makes them. Used by one thread."""

    def wait(self, seconds: float) -> bool:
        """Wait so long for a commit since the last call; whether there was one, or may have been.

        Raises LedgerError if the database cannot be heard: then nothing is known until a later call.
        """
        ...

    def close(self) -> None:
        """Hear no more."""
        ...


class Database(Protocol):
    """Keeps the tables of one ledger."""

    @property
    def engine(self) -> Engine:
        """What connections come from."""
        ...

    @property
    def place(self) -> str:
        """How errors name it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process must find in its environment to open it too."""
        ...

    def exists(self) -> bool:
        """Whether a ledger was made here."""
        ...

    def make(self) -> None:
        """Make what is not there yet."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent view."""
        ...

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that no other writer is beside; committed when it is left without an error."""
        ...

    def heals(self, error: DBAPIError) -> bool:
        """Whether the same may go well later: nothing is wrong with what was asked."""
        ...

    def hint(self, error: DBAPIError) -> str:
        """What to do about an error that does not heal."""
        ...

    def free(self, gone: Process) -> None:
        """Let nobody wait for a process that counts as gone, if it stands inside a transaction."""
        ...

    def watch(self) -> Watch:
        """Hear of commits from now on."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

    def drop(self) -> None:
        """Let go of it, and remove it."""
        ...


def database_of(location: Location, *, writer: bool = True) -> Database:
    """The database of a ledger. For one who only looks, nothing is made, and an outage is told at once."""
    if isinstance(location, InFile):
        from holdfast.ledger.sqlite import Sqlite

        return Sqlite(location, writer=writer)
    from holdfast.ledger.postgres import Postgres

    return Postgres(location, writer=writer)


@contextmanager
def translated(database: Database, operation: str) -> Iterator[None]:
    """Tell errors of the database as the ledger's."""
    try:
        yield
    except DBAPIError as error:
        heals = database.heals(error)
        cause = " ".join(str(error.orig or error).split())
        raise LedgerError(
            f"the ledger cannot be used: {cause}",
            operation=f"ledger {operation}",
            heals=heals,
            hint=None if heals else database.hint(error),
        ) from error
