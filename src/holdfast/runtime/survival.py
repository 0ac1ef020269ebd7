"""What a flow does not survive though it says so: a loss that takes the ledger too.

Files on the replica are of use only to who knows, from the ledger, what they are. Nothing is refused for it: whether a work
directory is lost with its machine is not for a program to know, and a flow is planned before it is known where its ledger is.
So whoever runs or explains the flow is told.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from holdfast.ledger.location import FILE_NAME, POINTER_NAME, InFile, Location
from holdfast.runtime.progress import Notice

# The kind of the notice that a run begins with.
NOT_SURVIVED = "not survived"


@dataclass(frozen=True)
class Shortfall:
    """What does not hold, and what would make it hold."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


def shortfall(survives: str, location: Location) -> Shortfall | None:
    """What is to be said of a flow that says what it survives, and has its ledger there."""
    if survives != "machine" or not isinstance(location, InFile):
        return None
    return Shortfall(
        f'survives="machine" does not hold if the work directory is lost: the ledger is in it, in {FILE_NAME}, and without '
        "the ledger the replica cannot be read",
        "Begin in a new work directory with --ledger postgresql://USER@HOST/DB, a server on another machine, and keep a copy "
        f"of {POINTER_NAME} elsewhere; or have the work directory on a disk that outlives the machine.",
    )


def notices(survives: str, location: Location) -> list[Notice]:
    """The same, for whoever watches a run from its start."""
    found = shortfall(survives, location)
    return [Notice(time.time_ns() // 1_000_000, NOT_SURVIVED, str(found))] if found else []
