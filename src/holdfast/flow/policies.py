"""Recovery policies: how a stage comes back after the process that ran it is gone.

A policy is a handful of choices, and one runtime interprets them: whose the files are, how far they are carried and
when, who stands by, and what a successor does first. The functions below are the methods of the literature, each by
its choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.core.errors import PlanError

TIERS = ("memory", "disk", "replica")

# Which tier keeps files through the loss that a flow says it survives.
TIER_THAT_SURVIVES = {"process": "memory", "power": "disk", "machine": "replica"}


class Files(Enum):
    """Whose the layers of a stage are."""

    FLOW = "flow"  # a successor adopts them
    WORKER = "worker"  # they die with the worker: fencing it condemns them


class Persist(Enum):
    """When committed files are carried to further tiers."""

    NEVER = "never"
    BEHIND = "behind"  # in the background, after the commit
    BEFORE = "before"  # the commit waits for it


class Standby(Enum):
    """What the further members of a stage's group do."""

    NONE = "none"
    WARM = "warm"  # ready to go on
    HOT = "hot"  # compute every epoch too, and race to commit it


class Resume(Enum):
    """What a successor does with a stage whose worker is gone."""

    ADOPT = "adopt"  # goes on with the files that are there; what is lost is replayed
    SKIP = "skip"  # gives up the state and the unread input, and says what was in them
    REBUILD = "rebuild"  # replays retained input onto an empty state
    DELTA = "delta"  # goes on from the last delta that the standby holds, and replays from there


@dataclass(frozen=True)
class Policy:
    """How one stage recovers."""

    name: str
    files: Files = Files.FLOW
    persist: Persist = Persist.BEHIND
    tiers: tuple[str, ...] = ("memory", "disk")
    standby: Standby = Standby.NONE
    members: int = 1  # processes that could run the stage, the one that does included
    resume: Resume = Resume.ADOPT
    every: int = 1  # epochs in a delta
    lockstep: bool = False  # no epoch begins before every member has computed the one before

    @property
    def precise(self) -> bool:
        """Whether a failure changes nothing in what leaves the stage."""
        return self.resume is not Resume.SKIP


def gap() -> Policy:
    """Keep nothing for a failure: what was in the state or unread is then skipped, and said to be."""
    return Policy("gap", Files.WORKER, Persist.NEVER, ("memory",), resume=Resume.SKIP)


def upstream_backup() -> Policy:
    """Keep the input for as long as the state depends on it, and make the state from it again."""
    return Policy("upstream_backup", Files.WORKER, Persist.NEVER, ("memory",), resume=Resume.REBUILD)


def passive_standby(every: int = 1, members: int = 2) -> Policy:
    """Send the state's changes of `every` epochs to a standby, which goes on from the last that it got."""
    _at_least(every, 1, "every", "It is how many epochs are sent as one.")
    _at_least(members, 2, "members", "A standby is a second member; hf.no_sync() does without one.")
    return Policy(
        "passive_standby",
        Files.WORKER,
        standby=Standby.WARM,
        members=members,
        resume=Resume.DELTA,
        every=every,
    )


def active_standby(lockstep: bool = False, members: int = 2) -> Policy:
    """Let every member compute every epoch; the first to commit it wins.

    With `lockstep` no epoch begins before all members have computed the one before.
    """
    _at_least(members, 2, "members", "A standby is a second member; hf.no_sync() does without one.")
    if not isinstance(lockstep, bool):
        raise PlanError(
            f"lockstep={lockstep!r} is neither True nor False",
            operation="describe",
            hint="It is whether members wait for each other.",
        )
    return Policy("active_standby", standby=Standby.HOT, members=members, lockstep=lockstep)


def strong_production(members: int = 1) -> Policy:
    """Have state and output of an epoch on the disk before it is committed; more members stand by warm."""
    _at_least(members, 1, "members", "The process that runs the stage is one.")
    return Policy("strong_production", persist=Persist.BEFORE, standby=_warm(members), members=members)


def no_sync(tiers: Sequence[str] = ("memory", "disk"), members: int = 1) -> Policy:
    """Commit first, and carry the files from tier to tier behind it; more members stand by warm."""
    _at_least(members, 1, "members", "The process that runs the stage is one.")
    if isinstance(tiers, str) or not tiers or tuple(tiers) != TIERS[: len(tiers)]:
        raise PlanError(
            f"tiers={tiers!r} is not a way from memory outwards",
            operation="describe",
            hint='Say ("memory",), ("memory", "disk") or ("memory", "disk", "replica").',
        )
    return Policy("no_sync", tiers=tuple(tiers), standby=_warm(members), members=members)


def default_policy(survives: str) -> Policy:
    """What a stage does that was told nothing: files follow as far as the flow's loss asks for."""
    furthest = TIERS.index(TIER_THAT_SURVIVES[survives])
    return no_sync(TIERS[: furthest + 1])


def check_policy(policy: Policy) -> Policy:
    """Refuse anything else where a policy is expected, such as the function instead of what it returns."""
    if not isinstance(policy, Policy):
        raise PlanError(
            f"{policy!r} is not a recovery policy",
            operation="describe",
            hint="Give what hf.no_sync(), hf.passive_standby() and the like return; docs/RECOVERY.md has them all.",
        )
    return policy


def _warm(members: int) -> Standby:
    return Standby.WARM if members > 1 else Standby.NONE


def _at_least(number: int, least: int, name: str, hint: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise PlanError(
            f"{name}={number!r} is not a whole number from {least} on", operation="describe", hint=hint
        )
