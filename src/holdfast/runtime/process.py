"""The process of one worker, started by a supervisor: `python -m holdfast.runtime.process SPEC`.

SPEC is JSON: what to run, for which group, under which name. The process says in the ledger how it fares, and why it
failed if it does; what Spark and the user's code print goes to a log file beside the ledger.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from threading import Event

from holdfast.flow import columns
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.ledger import groups
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import PASSWORD_VARIABLE
from holdfast.ledger.process import Process
from holdfast.protocols.supervision import ACTIVE, FAILED, FINISHED, STOPPED
from holdfast.runtime import loader, priority
from holdfast.runtime.failure import facts_of
from holdfast.runtime.lease import Lease
from holdfast.runtime.standby import Standby
from holdfast.runtime.worker_spec import WorkerSpec


def planned(spec: WorkerSpec) -> FlowPlan:
    """The flow of a file or module, cut and placed."""
    description = loader.load(spec.flow)
    loader.ship_module_by_value(description)
    found = plan(description)
    columns.check(found)
    found = found.spread(spec.workers) if spec.workers else found
    return found.triggered(spec.trigger_us) if spec.trigger_us else found


def main(argument: str) -> int:
    """Run one worker to its end; the exit status."""
    spec = WorkerSpec(**json.loads(argument))
    root = Path(spec.work_dir)
    if spec.in_background:
        priority.lower()
    lease = Lease(root, spec.worker, spec.lease_ms)
    ledger = Ledger(root)
    # Neither Spark's processes nor the flow's code need it.
    os.environ.pop(PASSWORD_VARIABLE, None)
    groups.note_process(ledger, spec.worker, Process.myself())
    told = Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = _work(spec, root, ledger, told)
        groups.update_worker(ledger, spec.worker, status=status)
        return 0
    except BaseException as error:
        traceback.print_exc()
        _say_why(ledger, spec.worker, error)
        return 1
    finally:
        lease.close()
        ledger.close()


def _work(spec: WorkerSpec, root: Path, ledger: Ledger, told: Event) -> str:
    """Bind, wait to be called, run; what became of it."""
    from holdfast.runtime import early, worker

    flow = early.ready(planned(spec), ledger)
    options = worker.RunOptions(
        spec.until_idle or spec.drain, spec.master, spec.conf, tasks=spec.tasks, drain=spec.drain
    )
    with worker.session(flow, options) as spark:
        rt = worker.bind_flow(flow, root, ledger, spark, options, spec.worker, spec.group)
        with rt.news:
            called = Standby(rt, told).wait()
            if called is None:
                return STOPPED
            priority.restore()
            rt.generation = called.generation
            groups.update_worker(ledger, spec.worker, status=ACTIVE)
            running = worker.Worker(rt, options, told)
            with worker.fenced_first(rt):
                running.run(lead=called.primary == spec.worker)
        status = STOPPED if told.is_set() or not running.leads else FINISHED
        if running.leads:
            rt.surviving(lambda: groups.leave(ledger, rt.generation, spec.worker, status))
        return status


def _say_why(ledger: Ledger, worker: str, error: BaseException) -> None:
    status = STOPPED if isinstance(error, KeyboardInterrupt) else FAILED
    groups.update_worker(ledger, worker, status=status, failure=facts_of(error))


if __name__ == "__main__":
    # A worker is in a session of its own, so that Ctrl-C reaches the supervisor alone, which tells it what to do.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1]))
