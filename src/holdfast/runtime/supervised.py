"""What a supervisor knows of the groups and workers of a flow."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ledger.groups import GroupRow, WorkerRow
from holdfast.protocols.stuck import OpenPlan


@dataclass
class Starts:
    """How a group's starts have gone since it last committed anything."""

    number: int = 0
    not_before: float = 0.0
    fill_after: float = 0.0  # when standbys may be started though the primary has committed nothing yet
    heads: int = -1  # the sum of the heads of the group's stages at the last start or promotion
    setbacks: int = 0  # fail-overs


@dataclass(frozen=True)
class View:
    """What the ledger said of a flow's processes at one moment."""

    groups: dict[str, GroupRow]
    workers: list[WorkerRow]
    heads: dict[str, int]
    plans: dict[str, OpenPlan]  # by stage, where one waits for its manifest
