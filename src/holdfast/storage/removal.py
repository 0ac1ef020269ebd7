"""Removing what a flow has left, by a person's will: counted before, and told if it cannot be done."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import StorageError


@dataclass(frozen=True)
class Measured:
    """How much there is below a path."""

    files: int
    bytes: int


def measured(paths: Iterable[Path]) -> Measured:
    """The files at and below some paths; what is not there counts nothing."""
    files = [
        one for path in paths for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file()
    ]
    return Measured(len(files), sum(one.stat().st_size for one in files))


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it; nothing if it is not there."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be removed: {error.strerror or error}",
            operation="remove",
            hint="Mend the permissions and run the same command again: it goes on where it stopped.",
        ) from error


def remove_if_empty(path: Path) -> None:
    """Remove a directory, unless there is something in it."""
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
