"""Secrets that a test plants, and where they must not be found: argument lists, files, what commands say."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from holdfast.core.errors import LedgerError
from holdfast.ledger.process import Process
from holdfast.ledger.roster import roster


def argument_lists(but: int) -> dict[int, bytes]:
    """Of all processes of this machine, except for one."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != but:
            try:
                found[int(entry.name)] = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
    return found


def shown(secrets: Collection[str], arguments: Iterable[bytes]) -> list[bytes]:
    """The argument lists that hold a secret."""
    return [words for words in arguments if any(secret.encode() in words for secret in secrets)]


def files_with(secrets: Collection[str], home: Path, but: Collection[Path] = ()) -> list[Path]:
    """The files below a directory that hold a secret."""
    paths = [path for path in home.rglob("*") if path.is_file() and path not in but]
    return [path for path in paths if shown(secrets, [path.read_bytes()])]


def workers(work: Path) -> Iterator[tuple[str, Process]]:
    """The workers of a flow's only group that have a process."""
    try:
        found = roster(work)["groups"]["main"]["workers"]
    except (LedgerError, KeyError):
        return
    for worker in found:
        if worker["process"]:
            yield worker["worker"], Process(**worker["process"])
