"""What can happen to files while nobody runs: each leaves what a crash, a power cut or a hand could leave."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

from holdfast.verify.power import cut

_LEDGER = ("ledger.db", "ledger.db-wal", "ledger.db-shm")


def hurt(work: Path, how: str, seed: int) -> bool:
    """Do something to one file of a layer or segment; False if there is none."""
    named = sorted(path for path in (work / "data").rglob("*") if path.is_file())
    # Bytes change under a name only where they were not on the disk yet; what is there is checked by its size.
    files = (
        [path for path in named if str(path.relative_to(work)) in _unsafe(work)] if how == "torn" else named
    )
    if not files:
        return False
    path = Random(seed).choice(files)
    size = path.stat().st_size
    match how:
        case "missing":
            path.unlink()
        case "truncated":
            os.truncate(path, size // 2)
        case "torn":
            body = bytearray(path.read_bytes())
            # A torn write leaves a page of something else: zeros, as a file system that lost power does.
            start = size // 3
            body[start : start + 512] = bytes(min(512, size - start))
            path.write_bytes(body)
    return True


def _unsafe(work: Path) -> set[str]:
    """Committed files above the safe point of the disk."""
    query = """
        select f.files from (
            select stage, last as epoch, runs as files from layers union all select stage, epoch, files from segments
        ) f left join tiers t on t.stage = f.stage and t.tier like 'disk%' where f.epoch > coalesce(t.safe, -1)
    """
    with closing(sqlite3.connect(work / "ledger.db")) as ledger:
        return {file["path"] for (group,) in ledger.execute(query) for file in json.loads(group)}


def cut_power(root: Path, fsyncs: Path) -> list[Path]:
    """Take away what was not fsynced."""
    return cut(root, fsyncs) if fsyncs.exists() else []


def lose_machine(work: Path) -> bool:
    """Take away all files of the flow; the ledger is elsewhere, and so are replica and sinks. False if there were none."""
    held = any(path.is_file() for path in (work / "data").rglob("*"))
    for place in work.iterdir():
        if place.is_dir():
            shutil.rmtree(place)
    return held


def set_back(work: Path, older: Path) -> None:
    """Put an older copy of the ledger in place of the newer one."""
    for name in _LEDGER:
        (work / name).unlink(missing_ok=True)
        if (older / name).exists():
            shutil.copyfile(older / name, work / name)


def is_locked(path: Path) -> bool:
    """Whether a process stands inside a write transaction of a database."""
    if not path.exists():
        return False
    with closing(sqlite3.connect(path, timeout=0.2)) as database:
        try:
            database.execute("begin immediate")
            database.execute("rollback")
        except sqlite3.OperationalError:
            return True
    return False
