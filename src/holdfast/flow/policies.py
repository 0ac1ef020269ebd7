"""Recovery policies: how a stage comes back after the process that ran it is gone.

A policy is a handful of choices, and one runtime interprets them: whose the files are, how far they are carried and
when, who stands by, and what a successor does first. The functions below are the methods of the literature, each by
its choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from holdfast.core.duration import microseconds, spelled
from holdfast.core.errors import PlanError

TIERS = ("memory", "disk", "replica")

# Which tier keeps files through the loss that a flow says it survives.
TIER_THAT_SURVIVES = {"process": "memory", "power": "disk", "machine": "replica"}

# How the stages of a region agree on a snapshot; `protocols/snapshots.py` has what each means.
SNAPSHOT_MODES = ("aligned", "unaligned", "at_least_once", "freeze")


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
    RETURN = "return"  # goes back, with all of its region, to the last snapshot that is complete


@dataclass(frozen=True)
class Snapshots:
    """How often a region is captured as one, and how."""

    mode: str
    every_us: int
    min_pause_us: int
    max_concurrent: int
    timeout_us: int
    tolerate: int  # snapshots in a row that may fail before the flow does

    def __str__(self) -> str:
        return f"{self.mode}, every {spelled(self.every_us)}"


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
    snapshots: Snapshots | None = None  # where the stage is captured with others

    @property
    def precise(self) -> bool:
        """Whether a failure changes nothing in what leaves the stage."""
        return self.resume is not Resume.SKIP and not self.repeats

    @property
    def repeats(self) -> bool:
        """Whether a failure may count rows twice that were counted before it."""
        return self.snapshots is not None and self.snapshots.mode == "at_least_once"

    def reaching(self, survives: str) -> Policy:
        """The same policy; one that has no tiers of its own goes as far as the flow's loss asks for."""
        return replace(self, tiers=_tiers_up_to(survives)) if self.snapshots else self


def gap() -> Policy:
    """Keep nothing for a failure. What was in the state or unread is then skipped, and said to be.

    The flow must have `guarantee="at_most_once"`.
    """
    return Policy("gap", Files.WORKER, Persist.NEVER, ("memory",), resume=Resume.SKIP)


def upstream_backup() -> Policy:
    """Keep the input for as long as the state depends on it, and make the state from it again.

    For stages whose input becomes needless: tumbling and sliding windows, inner joins, stages without state.
    """
    return Policy("upstream_backup", Files.WORKER, Persist.NEVER, ("memory",), resume=Resume.REBUILD)


def passive_standby(every: int = 1, members: int = 2) -> Policy:
    """Send the state's changes to a standby, which goes on from the last that it got, and replays what comes after.

    - `every`: how many epochs are sent as one; 1 by default.
    - `members`: processes that could run the stage, the one that does included; 2 by default, and at least.

    Raises `hf.PlanError` if a number is too small.

    >>> passive_standby(every=5).members
    2
    """
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

    - `lockstep`: whether no epoch begins before all members have computed the one before; False by default.
    - `members`: processes that compute the stage; 2 by default, and at least.

    Raises `hf.PlanError` if `members` is too small, or `lockstep` is neither True nor False.
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
    """Have state and output of an epoch on the disk before it is committed.

    - `members`: processes that could run the stage, the one that does included; 1 by default. Others stand by warm.

    Raises `hf.PlanError` if there is not even one.
    """
    _at_least(members, 1, "members", "The process that runs the stage is one.")
    return Policy("strong_production", persist=Persist.BEFORE, standby=_warm(members), members=members)


def no_sync(tiers: Sequence[str] = ("memory", "disk"), members: int = 1) -> Policy:
    """Commit first, and carry the files from tier to tier behind it. This is the default of stages.

    - `tiers`: how far files are carried: `("memory",)`, `("memory", "disk")`, which is the default, or
      `("memory", "disk", "replica")`, for which the flow names a `replica=`.
    - `members`: processes that could run the stage, the one that does included; 1 by default. Others stand by warm.

    Raises `hf.PlanError` if `tiers` is none of these, or `members` is below 1.

    >>> no_sync(members=2).standby.value
    'warm'
    """
    _at_least(members, 1, "members", "The process that runs the stage is one.")
    if isinstance(tiers, str) or not tiers or tuple(tiers) != TIERS[: len(tiers)]:
        raise PlanError(
            f"tiers={tiers!r} is not a way from memory outwards",
            operation="describe",
            hint='Say ("memory",), ("memory", "disk") or ("memory", "disk", "replica").',
        )
    return Policy("no_sync", tiers=tuple(tiers), standby=_warm(members), members=members)


def snapshot(
    every: str = "10 seconds",
    mode: str = "aligned",
    *,
    min_pause: str = "0 seconds",
    max_concurrent: int = 1,
    timeout: str = "10 minutes",
    tolerate: int = 2,
    members: int = 1,
) -> Policy:
    """Capture all stages that have this policy as one, every so often; after a failure all of them go back to that.

    What leaves them, to a sink or to a stage with another policy, leaves when a snapshot covers it.

    - `every`: how long after the beginning of one the next begins; `"10 seconds"` by default.
    - `mode`: `"aligned"`, the default, `"unaligned"`, `"at_least_once"` or `"freeze"`: docs/SNAPSHOTS.md has what each costs and
      promises.
    - `min_pause`: how long after the end of one the next may begin; `"0 seconds"` by default.
    - `max_concurrent`: how many may be under way at once; 1 by default.
    - `timeout`: one that takes longer is dropped; `"10 minutes"` by default.
    - `tolerate`: so many in a row may be dropped for that; one more stops the flow. 2 by default.
    - `members`: processes that could run a stage, the one that does included; 1 by default. Others stand by warm.

    Raises `hf.PlanError` if a number is too small, a duration cannot be read, or there is no such mode.
    """
    _at_least(max_concurrent, 1, "max_concurrent", "It is how many may be under way at once.")
    _at_least(tolerate, 0, "tolerate", "It is how many in a row may fail.")
    _at_least(members, 1, "members", "The process that runs the stage is one.")
    if mode not in SNAPSHOT_MODES:
        raise PlanError(
            f"mode={mode!r} is not one of {', '.join(SNAPSHOT_MODES)}",
            operation="describe",
            hint="docs/SNAPSHOTS.md says what each costs and promises.",
        )
    taken = Snapshots(
        mode,
        microseconds(every, "every"),
        microseconds(min_pause, "min_pause", zero=True),
        max_concurrent,
        microseconds(timeout, "timeout"),
        tolerate,
    )
    return Policy("snapshot", standby=_warm(members), members=members, resume=Resume.RETURN, snapshots=taken)


def default_policy(survives: str) -> Policy:
    """What a stage does that was told nothing: files follow as far as the flow's loss asks for."""
    return no_sync(_tiers_up_to(survives))


def _tiers_up_to(survives: str) -> tuple[str, ...]:
    return TIERS[: TIERS.index(TIER_THAT_SURVIVES[survives]) + 1]


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
