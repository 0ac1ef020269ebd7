"""What a supervisor knows of the groups and workers of a flow."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.protocols.lease import Sighting


@dataclass
class Starts:
    """How a group's starts have gone since it last committed anything."""

    number: int = 0
    not_before: float = 0.0
    fill_after: float = 0.0  # when standbys may be started though the primary has committed nothing yet
    heads: int = -1  # the sum of the heads of the group's stages at the last start or promotion


@dataclass
class Watch:
    """What the supervisor knows of a worker beside the ledger."""

    child: subprocess.Popen[bytes] | None = None  # if it is a child of this process
    pidfd: int | None = None
    sighting: Sighting | None = None
    first_ms: int = 0  # when it was looked at first


@dataclass(frozen=True)
class View:
    """What the ledger said of a flow's processes at one moment."""

    groups: dict[str, GroupRow]
    workers: list[WorkerRow]
    heads: dict[str, int]
