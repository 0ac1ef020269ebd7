"""What a supervisor tells a worker process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from holdfast.core import limits
from holdfast.core.json import Json
from holdfast.core.secrets import sealed, without_secrets


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
    master: str = field(default="local[*]", repr=False)  # that of Spark Connect may hold a token
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    tasks: int | None = None
    trigger_us: int | None = None  # instead of the flow's own
    lease_ms: int = limits.LEASE_MS_MAX  # how long its lease may stand still
    in_background: bool = False  # whether it starts and practises at low priority until it is called

    def to_json(self) -> str:
        """As it is handed to the worker. It holds secrets, so it goes through `unnamed_file`, and nowhere else."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """What was handed over."""
        return cls(**json.loads(text))

    def recorded(self, before: Json | None) -> Json:
        """What the ledger keeps of it, equal to what it kept before if the workers were told just the same.

        Of Spark's settings that is their names, and a seal by which a change of the values shows.
        """
        values = json.dumps([self.master, self.conf], sort_keys=True)
        told = {name: value for name, value in asdict(self).items() if name not in ("worker", "group")}
        seal = sealed(values, (before or {}).get("seal"))
        return {**told, "master": without_secrets(self.master), "conf": sorted(self.conf), "seal": seal}
