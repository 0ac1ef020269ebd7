"""What a supervisor does next, as a function of what it sees. No clock, no processes: they are arguments.

For every group: a primary that is gone is replaced, by a standby that is ready if there is one; hot standbys are
admitted when they are ready and expelled when they are gone; members that are missing are started, in the
background. A group that keeps dying without getting anything done is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What a worker says of itself.
STARTING, READY, ACTIVE = "starting", "ready", "active"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True)
class Seen:
    """A worker, as the supervisor sees it."""

    worker: str
    status: str
    lives: bool  # its process runs
    silent: bool  # its lease has run out
    rehearsals: int = 0
    warm: bool = True  # it has practised enough, or there is nothing to practise on yet

    @property
    def is_gone(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return not self.lives or self.silent or self.status in (FINISHED, STOPPED, FAILED)


@dataclass(frozen=True)
class Group:
    """A group of stages, as the ledger has it and as it should be."""

    name: str
    primary: str | None
    members: tuple[str, ...]  # who may commit
    wanted: int  # processes: the primary and its standbys
    hot: bool  # whether standbys compute every epoch too
    may_start: bool  # not so soon after the last start that failed
    asked: bool = False  # whether somebody wants its primary replaced
    may_fill: bool = (
        True  # whether standbys may be started: a new primary should not have to share the machine at once
    )


@dataclass(frozen=True)
class Promote:
    """Raise the generation and make a worker the primary."""

    group: str
    worker: str
    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Admit:
    """Let a hot standby commit too."""

    group: str
    worker: str


@dataclass(frozen=True)
class Expel:
    """Raise the generation for those that stay."""

    group: str
    worker: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Start a process."""

    group: str
    reason: str


@dataclass(frozen=True)
class Forget:
    """Strike a worker off the list: it is gone, and no longer a member of anything."""

    group: str
    worker: str
    reason: str


Action = Promote | Admit | Expel | Start | Forget


def decide(group: Group, workers: Sequence[Seen]) -> list[Action]:
    """The next steps for one group, in order. What they change is looked at again before anything else is done."""
    named = {worker.worker: worker for worker in workers}
    living = [worker for worker in workers if not worker.is_gone]
    if group.primary is not None and _is_gone(named, group.primary):
        return _replace(group, named, living)
    if group.primary is None:
        return _begin(group, workers, living)
    if group.asked:
        others = [worker for worker in living if worker.worker != group.primary and worker.status != STARTING]
        if others:
            return _hand_over(group, others, f"somebody asked for it; {group.primary} is fenced off")
    return [*_update_members(group, named, living), *_strike_off(group, workers), *_fill(group, living)]


def successor(workers: Sequence[Seen], members: Sequence[str]) -> Seen | None:
    """Who goes on fastest: a hot member, else one that is ready, the better rehearsed first, else anyone."""
    ranked = sorted(
        workers, key=lambda w: (w.worker not in members, w.status == STARTING, -w.rehearsals, w.worker)
    )
    return ranked[0] if ranked else None


def why_gone(worker: Seen | None) -> str:
    """Why a worker counts as gone."""
    if worker is None:
        return "it is unknown"
    if worker.status == FINISHED:
        return "it has finished"
    if worker.status == STOPPED:
        return "it has stopped"
    if worker.status == FAILED:
        return "it failed"
    return "its process has ended" if not worker.lives else "its lease has run out"


def _is_gone(named: dict[str, Seen], worker: str) -> bool:
    return worker not in named or named[worker].is_gone


def _replace(group: Group, named: dict[str, Seen], living: list[Seen]) -> list[Action]:
    assert group.primary is not None
    why = f"{group.primary} is gone: {why_gone(named.get(group.primary))}"
    if not living:
        return [Start(group.name, why)] if group.may_start else []
    return _hand_over(group, living, why)


def _hand_over(group: Group, living: list[Seen], why: str) -> list[Action]:
    heir = successor(living, group.members)
    assert heir is not None
    members = tuple(
        worker.worker for worker in living if worker.worker in group.members or worker.worker == heir.worker
    )
    return [Promote(group.name, heir.worker, members, f"{heir.worker} goes on; {why}")]


def _begin(group: Group, workers: Sequence[Seen], living: list[Seen]) -> list[Action]:
    """Nobody drives the group, and the last one to do so stopped cleanly, or there was none."""
    if any(worker.status == FINISHED for worker in workers):
        return _strike_off(group, [worker for worker in workers if worker.status != FINISHED])
    heir = successor(living, ())
    if heir is not None:
        return [Promote(group.name, heir.worker, (heir.worker,), f"{heir.worker} starts the group")]
    return [*_strike_off(group, workers), *_fill(group, living)]


def _update_members(group: Group, named: dict[str, Seen], living: list[Seen]) -> list[Action]:
    gone = [worker for worker in group.members if _is_gone(named, worker)]
    expelled: list[Action] = [
        Expel(group.name, worker, f"{worker} is gone: {why_gone(named.get(worker))}") for worker in gone
    ]
    admitted: list[Action] = [
        Admit(group.name, worker.worker)
        for worker in living
        if group.hot and worker.status == READY and worker.warm and worker.worker not in group.members
    ]
    return expelled + admitted


def _strike_off(group: Group, workers: Sequence[Seen]) -> list[Action]:
    return [
        Forget(group.name, worker.worker, why_gone(worker))
        for worker in workers
        if worker.is_gone and worker.worker != group.primary and worker.worker not in group.members
    ]


def _fill(group: Group, living: list[Seen]) -> list[Action]:
    """One at a time: a start is heavy, and the next look comes soon."""
    if len(living) >= group.wanted or not group.may_start or (living and not group.may_fill):
        return []
    return [Start(group.name, f"{len(living)} of {group.wanted} workers are there")]
