"""What a supervisor tells a worker process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from holdfast.core import limits


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker process is told."""

    flow: str  # path.py[:name] or module:name
    work_dir: str
    worker: str
    group: str
    workers: int | None = None  # into how many groups the stages are spread, if not by the flow itself
    until_idle: bool = False
    drain: bool = False
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    tasks: int | None = None
    trigger_us: int | None = None  # instead of the flow's own
    lease_ms: int = limits.LEASE_MS_MAX  # how long its lease may stand still
    in_background: bool = False  # whether it starts and practises at low priority until it is called

    def to_argument(self) -> str:
        """As the command line carries it."""
        return json.dumps(asdict(self))
