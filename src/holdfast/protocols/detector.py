"""Whether a worker still works, as far as one can tell from outside. No clock, no processes: they are arguments.

A lease that stands still is a suspicion. It is counted in time in which the process *could have run*: elapsed time, less
what its threads waited for a CPU, less what kept the judge itself from looking. So load, which holds up everybody, accuses
nobody. A process that is stopped, or whose interpreter is held by one thread, waits for no CPU, and is accused in full.

Invariants: time in which the lease could not be read, or in which the judge did not run, accuses nobody. CPU time that a
process gains does not acquit it: one that burns a CPU under a held interpreter lock does no work. Behind all excuses
stands a bound by the clock, so that every worker that raises no lease is accused in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core import limits


@dataclass(frozen=True)
class Thread:
    """A thread as the kernel accounts for it."""

    ran_ns: int  # on a CPU
    waited_ns: int  # for a CPU, up to the last time it got one
    runnable: bool  # it runs or waits for a CPU just now


@dataclass(frozen=True)
class Evidence:
    """What one look has brought. Threads are looked at only now and then: see `wants_threads`."""

    counter: int | None  # of the lease, None if it could not be read
    threads: Mapping[int, Thread] | None = None
    stalled_ms: float | None = (
        None  # how long tasks of the whole machine have waited, where threads are not told
    )


@dataclass(frozen=True)
class Terms:
    """How patient a judge is."""

    lease_ms: int = limits.LEASE_MS_MAX
    setbacks: int = 0  # fail-overs of the group since it last committed anything

    @property
    def patience(self) -> int:
        """By how much all bounds have grown."""
        return int(2 ** min(self.setbacks, limits.SETBACKS_MAX))


@dataclass(frozen=True)
class _Known:
    """A thread as it was at the last look, and for how long it has been waiting since without getting anywhere."""

    thread: Thread
    since_ms: int
    waited_ms: float


@dataclass(frozen=True)
class Accounts:
    """What a set of threads has done from one look at them to the next."""

    at_ms: int
    known: Mapping[int, _Known] = field(default_factory=dict)
    stalled_ms: float | None = None
    waited_ms: float = 0.0  # of the time between the looks, the largest wait of a thread
    ran_ms: float = 0.0  # all threads together


@dataclass(frozen=True)
class Belief:
    """What a judge has made of a worker's lease so far. Times are of the judge's monotonic clock."""

    counter: int
    looked_ms: int
    accounts: Accounts
    counted_ms: float = 0.0  # that it could have run without raising the lease
    open_ms: float = 0.0  # not weighed yet: since the threads were last looked at
    wall_ms: float = 0.0  # by the clock
    intervals_ms: tuple[float, ...] = ()  # between raises, counted in the same way

    @property
    def suspicion_ms(self) -> float:
        """How long it could have raised its lease and has not."""
        return self.counted_ms + self.open_ms


@dataclass(frozen=True)
class Verdict:
    """What a judge says: nothing, or why a worker counts as gone."""

    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.why)


FINE = Verdict()


def judge(belief: Belief | None, evidence: Evidence, now_ms: int, terms: Terms) -> tuple[Belief, Verdict]:
    """Weigh one look at a worker's lease."""
    counter = evidence.counter
    if counter is None and (belief is None or belief.counter == 0):
        counter = 0  # it has never been raised, which is no failed read
    if belief is None:
        return Belief(counter or 0, now_ms, accounts(None, evidence, now_ms)), FINE
    weighed = _weigh(belief, evidence, now_ms)
    if counter is None:
        return _anew(weighed, belief.counter), FINE
    if counter != belief.counter:
        raised = weighed.suspicion_ms / max(1, counter - belief.counter)
        intervals = (*belief.intervals_ms, raised)[-limits.LEASE_INTERVALS_MAX :] if belief.counter else ()
        return replace(_anew(weighed, counter), intervals_ms=intervals), FINE
    return weighed, _verdict(weighed, terms)


def once_ready(belief: Belief | None) -> Belief | None:
    """A worker that is ready is known anew: what holds up a start, imports and a JVM, would make one patient with it for long."""
    return belief if belief is None else replace(belief, intervals_ms=())


def wants_threads(belief: Belief | None, counter: int | None, terms: Terms) -> bool:
    """Whether a look is worth the reading of what every thread has done: at a raise, and once one is overdue."""
    return belief is None or counter != belief.counter or belief.suspicion_ms >= terms.lease_ms / 2


def bound_ms(belief: Belief, terms: Terms) -> float:
    """How long a lease may stand still: four times as long as it takes this worker to raise it, at its slowest."""
    if belief.counter == 0:
        return float(limits.FIRST_LEASE_MS_MAX * terms.patience)
    return max(terms.lease_ms, 4 * p99(belief.intervals_ms)) * terms.patience


def wall_bound_ms(belief: Belief, terms: Terms) -> float:
    """How long it may stand still by the clock, whatever kept it from running."""
    if belief.counter == 0:
        return float(limits.FIRST_LEASE_WALL_MS_MAX * terms.patience)
    return float(max(limits.LEASE_WALL_MS_MAX, 4 * terms.lease_ms) * terms.patience)


def _verdict(belief: Belief, terms: Terms) -> Verdict:
    counted, by_clock = belief.suspicion_ms, belief.wall_ms
    if counted < bound_ms(belief, terms) and by_clock < wall_bound_ms(belief, terms):
        return FINE
    if belief.counter == 0:
        return Verdict(f"it has not begun to raise its lease in {by_clock / 1000:.0f} s")
    stood = f"its lease has stood still for {by_clock / 1000:.1f} s"
    return Verdict(f"{stood}, in {max(0.0, counted) / 1000:.1f} s of which it could have run")


def _anew(belief: Belief, counter: int) -> Belief:
    return replace(belief, counter=counter, counted_ms=0.0, open_ms=0.0, wall_ms=0.0)


def _weigh(belief: Belief, evidence: Evidence, now_ms: int) -> Belief:
    """Add the time since the last look, as far as the judge could look, and the worker could have run."""
    passed = now_ms - belief.looked_ms
    belief = replace(
        belief,
        looked_ms=now_ms,
        open_ms=belief.open_ms + min(passed, limits.LEASE_LOOK_MS_MAX),
        wall_ms=belief.wall_ms + min(passed, limits.LEASE_PAUSE_MS_MAX),
    )
    if evidence.threads is None and evidence.stalled_ms is None:
        return belief
    found = accounts(belief.accounts, evidence, now_ms)
    could_ms = max(0.0, now_ms - belief.accounts.at_ms - found.waited_ms)
    counted = belief.counted_ms + min(belief.open_ms, could_ms)
    return replace(belief, counted_ms=counted, open_ms=0.0, accounts=found)


def accounts(before: Accounts | None, evidence: Evidence, now_ms: int) -> Accounts:
    """What the threads have done since they were looked at before; of the machine's wait, where they are not told."""
    if evidence.threads is None:
        stalled = evidence.stalled_ms
        was = before.stalled_ms if before else None
        waited = 0.0 if stalled is None or was is None else stalled - was
        return Accounts(now_ms, {}, stalled, min(max(0.0, waited), _passed_ms(before, now_ms)))
    known = {
        tid: _seen(before.known.get(tid) if before else None, thread, now_ms)
        for tid, thread in evidence.threads.items()
    }
    if before is None or not before.known:
        return Accounts(now_ms, known)
    waits = [one.waited_ms - _waited_before(before, tid) for tid, one in known.items()]
    ran_ns = sum(one.thread.ran_ns - _ran_before(before, tid) for tid, one in known.items())
    return Accounts(
        now_ms, known, None, min(max([0.0, *waits]), _passed_ms(before, now_ms)), max(0.0, ran_ns / 1e6)
    )


def _passed_ms(before: Accounts | None, now_ms: int) -> float:
    return float(now_ms - before.at_ms) if before else 0.0


def _waited_before(before: Accounts, tid: int) -> float:
    return before.known[tid].waited_ms if tid in before.known else 0.0


def _ran_before(before: Accounts, tid: int) -> int:
    return before.known[tid].thread.ran_ns if tid in before.known else 0


def _seen(before: _Known | None, thread: Thread, now_ms: int) -> _Known:
    """The kernel adds a wait when it is over; one that is not shows in a thread that is runnable and gets nowhere."""
    waits_on = (
        before is not None
        and thread.runnable
        and before.thread.runnable
        and (thread.ran_ns, thread.waited_ns) == (before.thread.ran_ns, before.thread.waited_ns)
    )
    since_ms = before.since_ms if before is not None and waits_on else now_ms
    return _Known(thread, since_ms, thread.waited_ns / 1e6 + (now_ms - since_ms))


def p99(values: Sequence[float]) -> float:
    """What one value in a hundred exceeds; 0 of none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)] if ranked else 0.0
