"""Whether a worker that raises its lease still gets anywhere: one is *stuck* whose open plan does not move.

That is a deadlock in the process, or a JVM that hangs or was stopped. Only time counts in which its JVM and its Python
workers neither waited for a CPU nor used one to speak of: an epoch that takes long burns CPU, and whoever waits for a
lock, or for a process that was stopped, does not. Here CPU time is an excuse, as it is not for a lease, but one that ends:
another stage of the same worker may be what burns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core import limits
from holdfast.protocols.detector import FINE, Accounts, Evidence, Terms, Verdict, accounts, p99


@dataclass(frozen=True)
class OpenPlan:
    """A plan that waits for its manifest: another one, or another version of it, is a move."""

    stage: str
    branch: int
    epoch: int
    version: int


@dataclass(frozen=True)
class Standstill:
    """How long a plan has not moved. Times are of the judge's monotonic clock."""

    plan: OpenPlan
    since_ms: int
    accounts: Accounts | None = None
    idle_ms: float = 0.0  # that nobody worked on it, though nothing was in the way
    busy_ms: float = 0.0


def look(before: Standstill | None, plan: OpenPlan, now_ms: int) -> Standstill:
    """Begin to time a plan, or go on."""
    return before if before is not None and before.plan == plan else Standstill(plan, now_ms)


def wants_threads(still: Standstill, now_ms: int) -> bool:
    """Whether it is time to look at the worker's processes."""
    looked_ms = still.accounts.at_ms if still.accounts else still.since_ms
    due_ms = limits.STUCK_LOOK_MS if still.accounts else limits.STUCK_LOOK_AFTER_MS
    return now_ms - looked_ms >= due_ms


def weigh(still: Standstill, evidence: Evidence, now_ms: int) -> Standstill:
    """Add the time since the processes were last looked at; that before the first look counts as their working."""
    found = accounts(still.accounts, evidence, now_ms)
    if still.accounts is None:
        return replace(still, accounts=found)
    passed = min(now_ms - still.accounts.at_ms, 2 * limits.STUCK_LOOK_MS)
    could_ms = max(0.0, passed - found.waited_ms)
    if found.ran_ms >= limits.STUCK_CPU_SHARE * passed:
        return replace(still, accounts=found, busy_ms=still.busy_ms + could_ms)
    return replace(still, accounts=found, idle_ms=still.idle_ms + could_ms)


def verdict(still: Standstill, epochs_ms: Sequence[float], terms: Terms) -> Verdict:
    """Whether the plan has stood still for too long, given how long epochs of the stage take."""
    slowest = limits.STUCK_EPOCHS * p99(epochs_ms)
    idle_max = max(limits.STUCK_MS_MIN, slowest) * terms.patience
    busy_max = max(limits.STUCK_BUSY_MS_MIN, slowest) * terms.patience
    if still.idle_ms < idle_max and still.busy_ms < busy_max:
        return FINE
    what = f"epoch {still.plan.epoch} of {still.plan.stage} has not moved"
    if still.idle_ms >= idle_max:
        return Verdict(f"it is stuck: {what}, in {still.idle_ms / 1000:.0f} s in which nobody worked on it")
    return Verdict(f"it is stuck: {what} in {still.busy_ms / 1000:.0f} s of work")


def is_near(still: Standstill) -> bool:
    """Whether it is worth knowing how long epochs of the stage take."""
    return still.idle_ms >= limits.STUCK_MS_MIN or still.busy_ms >= limits.STUCK_BUSY_MS_MIN
