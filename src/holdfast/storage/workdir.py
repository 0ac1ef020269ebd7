"""Where things are in a work directory. All names in the ledger are relative to it, so it can be moved."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import StorageError

DATA = "data"
TABLES = "tables"


def prepare(path: str | Path) -> Path:
    """Make the work directory, if need be, and return its absolute path."""
    root = Path(path).resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the work directory {root} cannot be made: {error.strerror}",
            operation="open",
            hint="Choose another, or mend the permissions.",
        ) from error
    return root


def attempt_directory(stage: str, attempt: str) -> str:
    """The directory of everything that one attempt writes."""
    return f"{DATA}/{stage}/{attempt}"
