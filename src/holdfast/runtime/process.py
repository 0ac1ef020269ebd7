"""The process of one worker, started by a supervisor: `python -m holdfast.runtime.process FLOW GROUP WORKER`.

What to run, for which group and under which name stands in its stdin, as JSON (runtime/worker_spec.py): it holds secrets. The
words of the command are for whoever looks at `ps`. The process says in the ledger how it fares, and why it failed if it
does; what Spark and the user's code print goes to a log file beside the ledger.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from holdfast.core.secrets import without_secrets
from holdfast.flow import columns
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.ledger import groups
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import PASSWORD_VARIABLE
from holdfast.ledger.process import Process
from holdfast.protocols.supervision import ACTIVE, FAILED, FINISHED, STOPPED
from holdfast.runtime import loader, priority
from holdfast.runtime.failure import facts_of, whole
from holdfast.runtime.lease import Lease
from holdfast.runtime.script import UNSCRIPTED, Script
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


def main(
    spec: WorkerSpec, plan_of: Callable[[WorkerSpec], FlowPlan] = planned, script: Script = UNSCRIPTED
) -> int:
    """Run one worker to its end; the exit status."""
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
        status = _work(spec, plan_of, script, root, ledger, told)
        groups.update_worker(ledger, spec.worker, status=status)
        return 0
    except BaseException as error:
        print(without_secrets(whole(error), spec.conf.items()), file=sys.stderr, flush=True)
        _say_why(ledger, spec, error)
        return 1
    finally:
        lease.close()
        ledger.close()


def _work(
    spec: WorkerSpec,
    plan_of: Callable[[WorkerSpec], FlowPlan],
    script: Script,
    root: Path,
    ledger: Ledger,
    told: Event,
) -> str:
    """Bind, wait to be called, run; what became of it."""
    from holdfast.runtime import early, worker

    flow = early.ready(plan_of(spec), ledger)
    options = worker.RunOptions(
        spec.until_idle or spec.drain,
        spec.master,
        spec.conf,
        tasks=spec.tasks,
        drain=spec.drain,
        script=script,
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


def _say_why(ledger: Ledger, spec: WorkerSpec, error: BaseException) -> None:
    status = STOPPED if isinstance(error, KeyboardInterrupt) else FAILED
    facts = facts_of(error, spec.conf.items())
    groups.update_worker(ledger, spec.worker, status=status, failure=facts)


def _told() -> WorkerSpec:
    """What the supervisor tells; afterwards, neither the flow's code nor a child of this process can read it again."""
    spec = WorkerSpec.from_json(sys.stdin.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return spec


if __name__ == "__main__":
    # A worker is in a session of its own, so that Ctrl-C reaches the supervisor alone, which tells it what to do.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(_told()))
