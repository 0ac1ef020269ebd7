"""What may go wrong in a schedule, and when: drawn from the seed before the schedule starts.

A fault of a process strikes when a process of its role next reaches its point (any point, if it names none), so
that crashes fall between the steps of the protocol and not only into the long waits. All faults end: a pause, an
outage, a deaf lease have a length, and who crashed is started again. So everything must come right afterwards. One kind
ends only if somebody ends it: a worker that stands still inside a transaction, with the ledger's write lock in its hand.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# The steps of a process at which it can be struck, before and after the transaction.
WORKER_POINTS = (
    *(f"{step}.{side}" for step in ("commit", "plan", "pass", "attempt", "leave", "recovered", "move sink", "publish")
      for side in ("before", "after")),
    "note.before", "ready.before", "active.after", "open sink.after", "compute", "raise",
)  # fmt: skip
SUPERVISOR_POINTS = (
    *(f"{step}.{side}" for step in ("promote", "admit", "expel", "add worker", "forget", "supervise")
      for side in ("before", "after")),
    "look", "looked", "spawn",
)  # fmt: skip

INSIDE_POINTS = tuple(
    f"{step}.inside"
    for step in ("note", "ready", "plan", "attempt", "commit", "close", "recovered", "move sink", "discover")
)

FAULTS_MS = 8_000  # faults begin within this time of the schedule
CLOSE_MS_MAX = 1_500
OUTAGE_MS_MAX = 10_000
PAUSE_MS_MAX = 6_000
STEP_MS_MAX = 86_400_000
STANDS_STILL = "stands still inside a transaction"
STANDS_STILL_MS = 86_400_000  # until somebody ends it

WORKER_KINDS = (
    *("crash", "crash", "pause", "pause", "burning", "starved"),
    *("fail", "stop", "deaf", "unreadable", "reply lost", STANDS_STILL),
)
SUPERVISOR_KINDS = ("crash", "pause", "second", "reply lost")
WORLD_KINDS = ("outage", "clock step")
ALL_KINDS = frozenset(
    {f"worker {kind}" for kind in WORKER_KINDS} | {f"supervisor {kind}" for kind in SUPERVISOR_KINDS}
).union(WORLD_KINDS)

# None of these is a failure of a worker, so none of them may cost a worker its place.
HARMLESS_KINDS = frozenset(
    {"outage", "clock step", "supervisor pause", "worker unreadable", "worker starved"}
)


@dataclass
class Fault:
    """One thing that goes wrong."""

    role: str  # worker, supervisor or world
    kind: str
    at_ms: int
    point: str  # empty: at whatever comes next
    length_ms: int

    def strikes(self, role: str, point: str) -> bool:
        """Whether it befalls a process of this role that stands at this point."""
        return self.role == role and self.point in ("", point)


def draw(rng: random.Random, kinds: frozenset[str], count_max: int) -> list[Fault]:
    """The faults of a schedule, in the order of their times."""
    possible = [
        (role, kind)
        for role, of_role in (
            ("worker", WORKER_KINDS), ("supervisor", SUPERVISOR_KINDS), ("world", WORLD_KINDS)
        )
        for kind in of_role
        if (kind if role == "world" else f"{role} {kind}") in kinds
    ]  # fmt: skip
    count = rng.randint(1, count_max) if possible else 0
    found: list[Fault] = []
    for _ in range(count):
        # Every other one comes close to the one before: a failure during the recovery from another.
        close = found and rng.random() < 0.5
        at_ms = found[-1].at_ms + rng.randint(0, CLOSE_MS_MAX) if close else rng.randint(0, FAULTS_MS)
        found.append(_one(rng, *rng.choice(possible), at_ms))
    return sorted(found, key=lambda fault: fault.at_ms)


def _one(rng: random.Random, role: str, kind: str, at_ms: int) -> Fault:
    points = {"worker": WORKER_POINTS, "supervisor": SUPERVISOR_POINTS, "world": ("",)}[role]
    point = rng.choice(points) if rng.random() < 0.7 else ""
    if kind == "reply lost":
        point = ""
    if kind == STANDS_STILL:
        return Fault(role, kind, min(at_ms, FAULTS_MS), rng.choice(INSIDE_POINTS), STANDS_STILL_MS)
    length_max = {"outage": OUTAGE_MS_MAX, "clock step": STEP_MS_MAX}.get(kind, PAUSE_MS_MAX)
    # Short ones are as likely as long ones: what is close to a bound is where mistakes are.
    length = int(length_max * rng.random() ** 3) + 1
    return Fault(role, kind, min(at_ms, FAULTS_MS), point, length)
