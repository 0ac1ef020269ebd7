"""Files that are there whole or not at all, also after a power loss.

Invariants:

1. Bytes are fsynced before the name that shows them, and the directory after it.
2. Nothing here replaces a file, except `write_atomic`, whose purpose it is.
3. Every failure is a `StorageError`; a name that is taken is a `TargetExistsError`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.errors import StorageError
from holdfast.core.ids import new_attempt_id

# Why a hard link may be impossible although a copy is not: another device, a file system without links
# or a kernel that forbids them for files of others, and an inode with the most links it can have.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP}

_HINTS = {
    errno.ENOSPC: "The disk is full: free some space, then start again.",
    errno.EDQUOT: "The disk quota is used up: free some space, then start again.",
    errno.EFBIG: "The file is larger than the process may write: raise its limit (ulimit -f).",
    errno.EACCES: "Give the user that runs the flow the right to write there.",
    errno.EPERM: "Give the user that runs the flow the right to write there.",
    errno.EROFS: "The file system is mounted read-only.",
    errno.EXDEV: "The directory must not be a mount point of its own: use one inside it.",
    errno.ENOENT: "Something outside Holdfast removed it, or a part of its path.",
    errno.EIO: "The device reports errors: look at the kernel's log.",
    errno.EMFILE: "Too many files are open: raise the limit (ulimit -n).",
    errno.ENFILE: "Too many files are open on this machine: raise the kernel's limit (fs.file-max).",
    errno.ENOMEM: "Memory is used up, or the number of maps is: give the process more, or less to do at once.",
}

# What a process or a machine has too little of for a moment: no file is lost by it.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


class TargetExistsError(StorageError):
    """The name is taken; what has it is as it was."""


def hint_for(error: Exception) -> str | None:
    """What a user can do about an error of the operating system, as it is or explained already."""
    if isinstance(error, StorageError):
        return error.hint
    return _HINTS.get(error.errno or 0) if isinstance(error, OSError) else None


def refuse_exhaustion(error: Exception, operation: str, path: str | Path) -> None:
    """Raise if what went wrong says nothing about the file: the process, or the machine, has run out of something."""
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        reason = os.strerror(error.errno or 0)
        raise StorageError(
            f"{path}: {reason}", operation=operation, heals=True, hint=hint_for(error)
        ) from error


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the content of `path`: a reader, or a power loss, finds the old bytes or the new ones."""
    draft = path.with_name(f".{path.name}.{new_attempt_id()}.tmp")
    with _explained("write", path):
        try:
            write_new(draft, data)
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    fsync_dir(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write and fsync a file that must not exist yet; its directory is the caller's to fsync."""
    with _explained("write", path), open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync_file(path: Path) -> None:
    """Make the bytes of a file survive a power loss; its name is the directory's business."""
    with _explained("fsync", path):
        _fsync(path, os.O_RDONLY)


def fsync_dir(path: Path) -> None:
    """Make the names in a directory survive a power loss."""
    with _explained("fsync", path):
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_dirs(path: Path) -> None:
    """Create a directory and what is missing above it, so that it survives a power loss."""
    if not path.parent.is_dir():
        make_dirs(path.parent)
    with _explained("mkdir", path):
        path.mkdir(exist_ok=True)
    fsync_dir(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Show a file under a second name, as a hard link where possible; never over another file.

    The bytes may still be in memory only: `fsync_file(target)` is the caller's to do.
    """
    with _explained("link", target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            _copy_new(source, target)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file; the target appears whole or not at all. The bytes are the caller's to fsync."""
    draft = target.with_name(f".{target.name}.{new_attempt_id()}.tmp")
    with _explained("copy", target):
        _copy_new(source, draft)
        try:
            os.replace(draft, target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise


def rename_without_replacing(source: Path, target: Path) -> None:
    """Move a file or a directory in one step, unless the new name is taken (`TargetExistsError`)."""
    with _explained("rename", target):
        if not _renamed_by_kernel(source, target):
            _rename_with_a_look(source, target)


def discard(path: Path) -> None:
    """Remove a file or a directory that nothing names, as far as possible: what stays does no harm."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


@contextmanager
def _explained(operation: str, path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise TargetExistsError(f"{path} exists already", operation=operation) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{path}: {reason}", operation=operation, hint=hint_for(error)) from error


def _fsync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_new(source: Path, target: Path) -> None:
    with open(source, "rb") as whole, open(target, "xb") as copy:
        try:
            shutil.copyfileobj(whole, copy, length=1 << 20)
            copy.flush()
        except BaseException:
            # Only from here is the name known to be ours to take away.
            with suppress(OSError):
                target.unlink()
            raise


def _renamed_by_kernel(source: Path, target: Path) -> bool:
    """Rename by the one call that can refuse to replace; false where there is no such call."""
    if _renameat2 is None:
        return False
    old, new = os.fsencode(source), os.fsencode(target)
    if _renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


def _rename_with_a_look(source: Path, target: Path) -> None:
    if not source.is_dir():
        os.link(source, target)
        os.unlink(source)
        return
    # A rename onto an empty directory succeeds, hence the look. Between the two calls a racing process
    # can lose at most an empty directory: one with anything in it makes the rename fail.
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise
