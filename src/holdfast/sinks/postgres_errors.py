"""What PostgreSQL says when it refuses, in our words: whether it heals by itself, and what to do. Never with a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

import adbc_driver_manager

from holdfast.core.errors import SinkError
from holdfast.sinks.postgres_engine import diagnosis, is_lost
from holdfast.storage import atomic

_NOTHING_LOST = "Nothing was lost: what is not published is offered again."

# By SQLSTATE, or by the class of it.
_HEALS = ("55P03", "40001", "40P01", "57P01", "57P02", "57P03", "53300", "25P03", "08")

_HINTS = {
    "55P03": "Another session keeps the table or its record locked.",
    "42501": "Give the role the right to do that: docs/POSTGRES.md says what the sink needs.",
    "3F000": "Create the schema first.",
    "42P01": "Something else changed the tables of the database: restore them.",
    "42703": "Something else changed the table: bring the column back.",
    "21000": "The key of the table takes values for equal that are different: give the column another collation.",
    "22001": "Make the column wider, or its type text.",
    "53100": "The disk is full: free some space, then start again.",
    "54000": "A key, or a row, is larger than PostgreSQL can hold: use a shorter key, such as a hash of it.",
    "0A000": "The table, or what protects it, cannot be copied into: use another table.",
    "23": "The table has a constraint that the rows break: drop it, or use another table.",
}

# A server that does not let us in says so without a SQLSTATE that would reach us.
_LOCKED_OUT = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "could not translate host name",
    "no password supplied",
    "invalid connection option",
    "SSL",
)

_NUL = re.compile(r'encoding "UTF8": 0x00')
_COLUMN = re.compile(r"column (.+)\Z")


def explained(
    error: BaseException, where: str, secret: str | None, operation: str, epoch: int | None
) -> SinkError:
    """The error for whatever came up from the driver."""
    cause = getattr(error, "orig", None) or error
    if not isinstance(cause, adbc_driver_manager.Error):
        hint = atomic.hint_for(cause) if isinstance(cause, Exception) else None
        return _failed(str(cause), where, secret, operation, epoch, heals=False, hint=hint)
    said = diagnosis(cause)
    state = cause.sqlstate or ""
    if state == "22021" and _NUL.search(str(cause)):
        return _nul(said, where, operation, epoch)
    reason = said.get("MESSAGE_PRIMARY") or " ".join(str(cause).split())
    if is_lost(cause):
        heals = not any(text in reason for text in _LOCKED_OUT)
        hint = f"Is the server up, and can it be reached? {_NOTHING_LOST}" if heals else None
        return _failed(reason, where, secret, operation, epoch, heals=heals, hint=hint)
    heals = state.startswith(_HEALS)
    hint = _HINTS.get(state) or _HINTS.get(state[:2])
    hint = " ".join(filter(None, [hint, _NOTHING_LOST if heals else None])) or None
    return _failed(reason, where, secret, operation, epoch, heals=heals, hint=hint)


def _nul(said: Mapping[str, str], where: str, operation: str, epoch: int | None) -> SinkError:
    found = _COLUMN.search(said.get("CONTEXT", ""))
    column = f"the column {found[1]!r} has" if found else "there is"
    return SinkError(
        f"{where} cannot be written: {column} text with a NUL character, which PostgreSQL cannot hold",
        operation=operation,
        epoch=epoch,
        hint=r"Take it out in a transform before the sink: translate(text, '\0', '').",
    )


def _failed(
    reason: str,
    where: str,
    secret: str | None,
    operation: str,
    epoch: int | None,
    *,
    heals: bool,
    hint: str | None,
) -> SinkError:
    return SinkError(
        f"{where} cannot be written: {hidden(reason, secret)}",
        operation=operation,
        epoch=epoch,
        heals=heals,
        hint=hint,
    )


def hidden(text: str, secret: str | None) -> str:
    """A text without the password, in whatever spelling a URL or a connection string gives it."""
    if not secret:
        return text
    escaped = secret.replace("\\", "\\\\").replace("'", "\\'")
    for spelling in sorted(
        {secret, quote(secret, safe=""), quote_plus(secret), escaped}, key=len, reverse=True
    ):
        text = text.replace(spelling, "***")
    return text
