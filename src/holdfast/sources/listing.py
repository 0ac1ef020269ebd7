"""The files of a directory, as a source or a table sees them: in the order of their modification, hidden ones left out."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from holdfast.core.errors import InputError


def listed(who: str, directory: Path, known: Set[str] = frozenset()) -> list[tuple[int, str, int]]:
    """When each file was modified, its name and its length, oldest first, but for those that are known.

    Files of one instant come by name. A directory that cannot be listed is an InputError.
    """
    try:
        with os.scandir(directory) as entries:
            new = [e for e in entries if e.name not in known and e.name[0] not in "._" and e.is_file()]
            return sorted(stamp for e in new for stamp in _stamped(e))
    except OSError as error:
        raise InputError(
            f"{who} cannot list {directory}: {error.strerror}",
            operation="discover",
            hint=_hint(error),
        ) from error


def _stamped(entry: os.DirEntry[str]) -> list[tuple[int, str, int]]:
    """What is known of a listed file; nothing if it has gone since it was listed."""
    try:
        stat = entry.stat()
    except FileNotFoundError:
        return []
    return [(stat.st_mtime_ns, entry.name, stat.st_size)]


def _hint(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "Make the directory, or mend the path: files that come into it later are found."
        case NotADirectoryError():
            return "Give the directory that the file is in."
        case PermissionError():
            return "Mend its permissions: it must be readable and searchable."
        case _:
            return "Mend the directory or its file system."
