"""Where things are in a work directory. All names in the ledger are relative to it, so it can be moved.

It holds rows of the user's, so one that is made here is its user's alone. What is inside has the modes that the umask gives: the
directory keeps others out, and segments that a sink links into its target must be as readable there as any file.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import StorageError
from holdfast.storage.atomic import fsync_dir

DATA = "data"
TABLES = "tables"

# Of a directory that is made; one that is there already has the mode that somebody wanted it to have.
MODE = 0o700


def prepare(path: str | Path) -> Path:
    """Make the work directory, if need be, so that it survives a power loss, and return its absolute path."""
    root = Path(path).resolve()
    made = [directory for directory in (root, *root.parents) if not directory.is_dir()]
    try:
        root.mkdir(mode=MODE, parents=True, exist_ok=True)
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
