"""Notes in a file what a process has fsynced; `cut` then takes away everything else, as a power cut may.

kill -9 leaves the page cache as it is and hides what was never on the disk. SQLite fsyncs its own files, which stay.
`python -m holdfast.verify.power LOG SCRIPT ARGUMENTS...` runs a script like that.
"""

from __future__ import annotations

import json
import os
import runpy
import stat
import sys
from pathlib import Path


def note_what_is_fsynced(log: Path) -> None:
    """From here on, write a line for every fsync of this process before it returns."""
    fsync, file = os.fsync, os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def noting(fd: int) -> None:
        fsync(fd)
        found = os.fstat(fd)
        names = None
        if stat.S_ISDIR(found.st_mode):
            names = {entry.name: entry.inode() for entry in os.scandir(f"/proc/self/fd/{fd}")}
        os.write(file, (json.dumps([found.st_ino, names]) + "\n").encode())

    os.fsync = noting  # type: ignore[assignment]


def cut(home: Path, log: Path, keep: Path | None = None) -> list[Path]:
    """Take away what would not be there after a power cut; the files that lost their name or their bytes.

    A name lasts if its directory was fsynced while it had it, and so on upwards; bytes last if the file was. What lies
    under `keep` belongs to somebody else, and databases take care of themselves.
    """
    whole, listed = _noted(log)
    lost = []
    for path in sorted(home.rglob("*")):
        if not path.is_file() or ".db" in path.name or (keep and path.is_relative_to(keep)):
            continue
        if not _is_listed(path, home, listed):
            path.unlink()
            _remove_unlisted(path.parent, home, listed)
        elif path.stat().st_ino not in whole:
            os.truncate(path, path.stat().st_size // 2)
        else:
            continue
        lost.append(path)
    return lost


def _noted(log: Path) -> tuple[set[int], dict[int, dict[str, int]]]:
    """Files that were fsynced, and what directories held when they last were."""
    whole: set[int] = set()
    listed: dict[int, dict[str, int]] = {}
    for line in log.read_text().splitlines():
        inode, names = json.loads(line)
        if names is None:
            whole.add(inode)
        else:
            listed[inode] = names
    return whole, listed


def _remove_unlisted(directory: Path, home: Path, listed: dict[int, dict[str, int]]) -> None:
    """A directory whose name was not on the disk goes with the last file in it: so does one that was just renamed."""
    while directory != home and not any(directory.iterdir()) and not _is_listed(directory, home, listed):
        directory.rmdir()
        directory = directory.parent


def _is_listed(path: Path, home: Path, listed: dict[int, dict[str, int]]) -> bool:
    parents = [path, *path.parents][: len(path.relative_to(home).parts)]
    return all(listed.get(one.parent.stat().st_ino, {}).get(one.name) == one.stat().st_ino for one in parents)


if __name__ == "__main__":
    note_what_is_fsynced(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
