"""Where a flow's ledger is: a file in its work directory, or a schema of a PostgreSQL database.

A work directory whose ledger is elsewhere says so in `ledger.json`, so that whoever is given the directory finds the
ledger. Invariants: no password is ever in that file, in a text of ours, or on a command line that we make; a schema
belongs to one work directory, which both know by a common id.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from holdfast.core.errors import LedgerError
from holdfast.core.reserved import SCHEMA_PREFIX

FILE_NAME = "ledger.db"
POINTER_NAME = "ledger.json"

# There while a reset removes what is in a work directory.
RESET_NAME = "reset.json"

# The URL of a ledger that is not to be in the work directory, if no command line says one.
LEDGER_VARIABLE = "HOLDFAST_LEDGER"

# Where the password is looked for; libpq looks on in PGPASSWORD and in its password file.
PASSWORD_VARIABLE = "HOLDFAST_LEDGER_PASSWORD"

_SCHEME = "postgresql"
_IDENTIFIER_BYTES_MAX = 63  # PostgreSQL cuts longer ones
_SECRETS = {"password", "sslpassword", "oauth_client_secret"}


@dataclass(frozen=True)
class InFile:
    """A ledger on SQLite, in the work directory."""

    work_dir: Path

    @property
    def file(self) -> Path:
        """The database."""
        return self.work_dir / FILE_NAME


@dataclass(frozen=True)
class InPostgres:
    """A ledger in a schema of a PostgreSQL database."""

    work_dir: Path
    url: str  # without the password
    schema: str
    id: str  # of the work directory
    known: bool  # whether the directory says so already, and a server was therefore once found there
    password: str | None = field(default=None, repr=False)

    @property
    def address(self) -> URL:
        """The URL as SQLAlchemy takes it, with the password if we were given one."""
        return sa.make_url(self.url).set(drivername=f"{_SCHEME}+psycopg", password=self.password)

    def remember(self) -> None:
        """Write down in the work directory where its ledger is; whole, or not at all, and by one process only."""
        body = {"url": self.url, "schema": self.schema, "id": self.id}
        path = self.work_dir / POINTER_NAME
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(body, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not take the place of what another process has just written.
            os.link(part, path)
        except FileExistsError:
            raise LedgerError(
                f"another process has just begun to run a flow in {self.work_dir}",
                operation="open",
                heals=True,
            ) from None
        finally:
            part.unlink()
        directory = os.open(self.work_dir, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


Location = InFile | InPostgres


def is_work_directory(path: Path) -> bool:
    """Whether a flow keeps, or finds, its ledger here."""
    # Unlike Path.is_file, this takes the directory of another user for none, and does not raise.
    return any(os.path.isfile(path / name) for name in (FILE_NAME, POINTER_NAME))


def may_write(work_dir: Path) -> bool:
    """Whether whoever asks may change the ledger of a work directory, as far as the directory tells."""
    return any(os.access(work_dir / name, os.W_OK) for name in (FILE_NAME, POINTER_NAME))


def found(work_dir: Path) -> Location:
    """Where the ledger of a work directory is; a directory that says nothing has it in itself."""
    if work_dir.is_dir() and not os.access(work_dir, os.R_OK | os.X_OK):
        raise LedgerError(
            f"{work_dir} may not be read",
            operation="open",
            hint="A work directory is for the user alone who runs the flow, unless that user opens it to others (chmod).",
        )
    path = work_dir / POINTER_NAME
    if not path.is_file():
        return InFile(work_dir)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        url, schema, identity = str(body["url"]), str(body["schema"]), str(body["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"{path} does not say where the ledger is", operation="open", hint="Bring it back from a backup."
        ) from error
    given, password = _split(url)
    return InPostgres(work_dir, given, schema, identity, True, password or os.environ.get(PASSWORD_VARIABLE))


def chosen(work_dir: Path, url: str | None, flow: str) -> Location:
    """Where the ledger of a flow is to be: where it is already, or where `url` says if it is nowhere yet."""
    before = found(work_dir)
    if url is None:
        return before
    given, password = _split(url)
    if isinstance(before, InFile):
        if before.file.exists():
            raise LedgerError(
                f"the ledger of {work_dir} is in {FILE_NAME}, and cannot be moved",
                operation="open",
                hint="Leave --ledger out, or start the flow in a new work directory.",
            )
        password = password or os.environ.get(PASSWORD_VARIABLE)
        return InPostgres(work_dir, given, _schema_of(flow), uuid.uuid4().hex, False, password)
    if _place(given) != _place(before.url):
        raise LedgerError(
            f"the ledger of {work_dir} is in {before.url}, not in {given}",
            operation="open",
            hint=f"Leave --ledger out. If the database has moved, change {POINTER_NAME}.",
        )
    return InPostgres(
        work_dir, given, before.schema, before.id, True, password or os.environ.get(PASSWORD_VARIABLE)
    )


def _split(text: str) -> tuple[str, str | None]:
    """A URL without its password, and the password. What cannot be read is not repeated: it may hold one."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise _refused("the URL of the ledger cannot be read") from None
    if url.drivername != _SCHEME:
        raise _refused(f"a ledger cannot be in {url.get_backend_name()!r}")
    if not _host(url) or not url.database:
        raise _refused("the URL of the ledger does not name a host and a database")
    secrets = sorted(_SECRETS & url.query.keys())
    if secrets:
        raise _refused(f"the URL of the ledger has a secret among its options ({secrets[0]})")
    # `url.set(password=None)` would leave it as it is.
    bare = URL.create(_SCHEME, url.username, None, url.host, url.port, url.database, url.query)
    return bare.render_as_string(hide_password=False), None if url.password is None else str(url.password)


def _refused(what: str) -> LedgerError:
    return LedgerError(
        what,
        operation="open",
        hint="Write it as postgresql://USER@HOST:PORT/DATABASE, with letters such as @ and / in names and password"
        f" percent-encoded. The password may stand in {PASSWORD_VARIABLE} instead.",
    )


def _host(url: URL) -> str | tuple[str, ...] | None:
    """The server, which may also stand among the options: there it may be a socket, or several servers."""
    return url.host or url.query.get("host")


def _place(text: str) -> tuple[object, int, str | None]:
    url = sa.make_url(text)
    return _host(url), url.port or 5432, url.database


def _schema_of(flow: str) -> str:
    """The schema of a flow: its name, cut where PostgreSQL would cut it, but so that no two flows share it."""
    name = f"{SCHEMA_PREFIX}{flow}"
    if len(name.encode()) <= _IDENTIFIER_BYTES_MAX:
        return name
    digest = hashlib.blake2b(flow.encode(), digest_size=6).hexdigest()
    return f"{name[: _IDENTIFIER_BYTES_MAX - len(digest) - 1]}_{digest}"
