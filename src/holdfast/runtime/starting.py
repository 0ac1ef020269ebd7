"""Starts worker processes.

Everybody on a machine may read everybody's argument lists, and a worker is told secrets: so it is told through its stdin, which
is a file without a name. Its argument list says only what helps whoever looks at `ps`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from holdfast.core.python_path import SAFELY
from holdfast.core.secrets import unnamed_file
from holdfast.runtime.evidence import WORKER_VARIABLE
from holdfast.runtime.lease import LEASES
from holdfast.runtime.worker_spec import WorkerSpec

LOGS = "logs"


class Started(Protocol):
    """A process that was started, as `subprocess` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...


# Starts a worker of a flow, with these variables in its environment.
Starter = Callable[[str, WorkerSpec, Mapping[str, str]], Started]


def start_worker(flow: str, spec: WorkerSpec, environment: Mapping[str, str]) -> Started:
    """Start the process of a worker of a flow; what it prints goes to its log."""
    root = Path(spec.work_dir)
    (root / LOGS).mkdir(exist_ok=True)
    (root / LEASES).mkdir(exist_ok=True)
    with log_of(root, spec.worker).open("wb") as log, unnamed_file(spec.to_json()) as told:
        return subprocess.Popen(
            [sys.executable, *SAFELY, "-m", "holdfast.runtime.process", flow, spec.group, spec.worker],
            env={**os.environ, **environment, WORKER_VARIABLE: spec.worker},
            stdin=told,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def log_of(root: Path, worker: str) -> Path:
    """The log of a worker."""
    return root / LOGS / f"{worker}.log"
