"""The workers of a flow for whoever looks: who leads, who stands by, and how well prepared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from holdfast.core.json import Json
from holdfast.ledger.groups import GroupRow, WorkerRow, all_groups, all_workers
from holdfast.ledger.ledger import reading
from holdfast.ledger.status import failovers


def roster(work_dir: Path) -> Json:
    """By group: its stages, its generation, its workers with their parts, and who was replaced lately, and why."""
    with reading(work_dir) as tx:
        groups, workers, replaced = all_groups(tx), all_workers(tx), failovers(tx)["newest"]
    return {
        "groups": {
            name: {
                "stages": list(row.stages),
                "generation": row.generation,
                "primary": row.primary,
                "workers": [_worker(row, worker) for worker in workers if worker.group == name],
                "failovers": [one for one in replaced if one["group"] == name],
            }
            for name, row in groups.items()
        }
    }


def _worker(group: GroupRow, worker: WorkerRow) -> Json:
    return {
        "worker": worker.worker,
        "part": _part(group, worker),
        "status": worker.status,
        "process": asdict(worker.process) if worker.process else None,
        "lives": worker.process is not None and worker.process.lives(),
        "rehearsals": worker.rehearsals,
        "failure": worker.failure,
    }


def _part(group: GroupRow, worker: WorkerRow) -> str:
    if worker.worker == group.primary:
        return "primary"
    return "hot standby" if worker.worker in group.members else "standby"
