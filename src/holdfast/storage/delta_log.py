"""The log of a Delta table: a file a version, with an action a line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from urllib.parse import unquote

from holdfast.core.json import Json

LOG = "_delta_log"


@dataclass(frozen=True)
class Commit:
    """What one version of a table did, by kind of action."""

    adds: tuple[Json, ...]
    removes: tuple[Json, ...]
    metadata: Json | None
    protocol: Json | None

    @property
    def added(self) -> list[Json]:
        """The files that brought rows."""
        return [add for add in self.adds if add.get("dataChange", True)]

    @property
    def changes(self) -> bool:
        """Whether rows that were there before are gone."""
        return any(remove.get("dataChange", True) for remove in self.removes)


def address(path: str) -> str:
    """A table as anybody finds it, wherever the process stands."""
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def commit_name(version: int) -> str:
    """Where a version is, from the root of the table."""
    return f"{LOG}/{version:020d}.json"


def parsed(data: bytes) -> Commit:
    """What a file of the log says; a ValueError if that is no log."""
    actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line is no action")

    def kind(name: str) -> list[Json]:
        return [action[name] for action in actions if name in action]

    metadata, protocol = kind("metaData"), kind("protocol")
    return Commit(
        tuple(kind("add")),
        tuple(kind("remove")),
        metadata[-1] if metadata else None,
        protocol[-1] if protocol else None,
    )


def file_path(action: Json) -> str:
    """Where a file of an action is: from the root of the table, or somewhere else altogether."""
    return unquote(str(action["path"]))
