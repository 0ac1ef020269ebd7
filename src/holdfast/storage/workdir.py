"""Where things are in a work directory. All names in the ledger are relative to it, so it can be moved."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import StorageError
from holdfast.storage.atomic import fsync_dir

DATA = "data"
TABLES = "tables"


def prepare(path: str | Path) -> Path:
    """Make the work directory, if need be, so that it survives a power loss, and return its absolute path."""
    root = Path(path).resolve()
    made = [directory for directory in (root, *root.parents) if not directory.is_dir()]
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the work directory {root} cannot be made: {error.strerror}",
            operation="open",
            hint="Choose another, or mend the permissions.",
        ) from error
    for directory in made:
        fsync_dir(directory.parent)
    return root


def attempt_directory(stage: str, attempt: str) -> str:
    """The directory of everything that one attempt writes."""
    return f"{DATA}/{stage}/{attempt}"
