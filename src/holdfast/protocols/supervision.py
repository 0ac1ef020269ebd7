"""What a supervisor does next, as a function of what it sees. No clock, no processes: they are arguments.

For every group: a primary that is gone is replaced, by a standby that is ready if there is one; hot standbys are
admitted when they are ready and expelled when they are gone; members that are missing are started, in the
background. A group that keeps dying without getting anything done is given up.

Nobody whose process lives is deposed for an heir that is not ready: as long as there is none, one is started, and who was
suspected may come back meanwhile. Who has ended may be followed by anyone.
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
    accused: str = ""  # why it counts as gone though it lives: its lease has run out, or it is stuck
    rehearsals: int = 0
    warm: bool = True  # it has practised enough, or there is nothing to practise on yet

    @property
    def has_ended(self) -> bool:
        """Whether it is over, without any doubt."""
        return not self.lives or self.status in (FINISHED, STOPPED, FAILED)

    @property
    def is_gone(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return self.has_ended or bool(self.accused)

    @property
    def is_ready(self) -> bool:
        """Whether it could go on at once."""
        return self.status in (READY, ACTIVE)


@dataclass(frozen=True)
class Group:
    """A group of stages, as the ledger has it and as it should be."""

    name: str
    primary: str | None
    members: tuple[str, ...]  # who may commit
    wanted: int  # processes: the primary and its standbys
    hot: bool  # whether standbys compute every epoch too
    may_start: bool  # not so soon after the last start that failed, and one at a time in the whole flow
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
    instead_of: str | None = None  # who is deposed though its process lives: look at it once more before


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
    in_background: bool = False  # somebody leads the group meanwhile


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
        others = [worker for worker in living if worker.worker != group.primary and worker.is_ready]
        if others:
            return _hand_over(group, others, f"somebody asked for it; {group.primary} is fenced off")
    surplus = _surplus(group, living)
    return [
        *_update_members(group, named, living),
        *_strike_off(group, workers),
        *surplus,
        *_fill(group, living),
    ]


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
    return worker.accused if worker.lives else "its process has ended"


def _is_gone(named: dict[str, Seen], worker: str) -> bool:
    return worker not in named or named[worker].is_gone


def _replace(group: Group, named: dict[str, Seen], living: list[Seen]) -> list[Action]:
    assert group.primary is not None
    primary = named.get(group.primary)
    why = f"{group.primary} is gone: {why_gone(primary)}"
    deposed = primary is not None and not primary.has_ended
    heirs = [worker for worker in living if worker.is_ready or not deposed]
    if heirs:
        return _hand_over(group, heirs, why, group.primary if deposed else None)
    if living or not group.may_start:
        return []
    return [Start(group.name, why, in_background=deposed)]


def _hand_over(group: Group, heirs: list[Seen], why: str, deposed: str | None = None) -> list[Action]:
    heir = successor(heirs, group.members)
    assert heir is not None
    members = tuple(
        worker.worker for worker in heirs if worker.worker in group.members or worker.worker == heir.worker
    )
    return [Promote(group.name, heir.worker, members, f"{heir.worker} goes on; {why}", deposed)]


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


def _surplus(group: Group, living: list[Seen]) -> list[Action]:
    """Somebody was started for a worker that came back after all: of those who stand by, the least prepared goes."""
    spare = [worker for worker in living if worker.worker not in group.members]
    if len(living) <= group.wanted or not spare:
        return []
    least = min(spare, key=lambda worker: (worker.is_ready, worker.rehearsals, worker.worker))
    return [Forget(group.name, least.worker, "it is no longer needed")]


def _fill(group: Group, living: list[Seen]) -> list[Action]:
    """One at a time: a start is heavy, and the next look comes soon."""
    if len(living) >= group.wanted or not group.may_start or (living and not group.may_fill):
        return []
    why = f"{len(living)} of {group.wanted} workers are there"
    return [Start(group.name, why, in_background=group.primary is not None)]
