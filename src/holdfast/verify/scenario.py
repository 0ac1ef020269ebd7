"""Which runs a campaign makes: a policy, a fault, and the steps at which processes die or files go.

A scenario says what happens, not how: `run.py` and `supervised_run.py` play it. Its name and the campaign's seed are enough to
play it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from holdfast.core.crashpoints import POINTS

# Reached inside a task: the Python worker dies, and the flow itself tries again.
IN_TASKS = frozenset({"task.before_layer", "task.after_layer", "task.after_segment", "merge.mid"})

# Reached when there is time: what has come together by then is done at once.
AT_LEISURE = frozenset({*(point for point in POINTS if point.startswith("merge.")), "snapshot.before_done"})

# Reached only after a death before, or when a file is lost.
IN_RECOVERY = frozenset({"recover.before", "recover.before_commit"})
IN_REPAIR = frozenset({"repair.before_commit"})

# Where a process that stops is most dangerous when it comes back: it is about to make something visible.
ZOMBIE_POINTS = ("plan.after", "commit.before", "sink.after_stage", "ship.mid")
ZOMBIE_POINTS_OF_SNAPSHOTS = ("snapshot.before_part", "snapshot.before_commit")

# Where the power goes: with files behind it that nobody has fsynced.
POWER_POINTS = ("commit.after", "ship.mid", "sink.after_publish")

# Where a process dies whose successor has another policy: with an epoch under way, and with files that are not carried on yet.
POLICY_POINTS = ("commit.before", "commit.after")

# Where a process that has its JVM to itself is killed, one of them a policy: a start takes long.
JVM_POINTS = ("plan.after", "commit.before", "sink.after_publish", "ship.mid")

# Where the supervisor and its workers meet: a worker says that it lives, a successor has been named.
LEASE, FENCED = "lease.before_renew", "failover.after_fence"

# Where a worker dies while nobody watches, and together with another of its group.
SUPERVISOR_POINTS = ("plan.after", "commit.after")
BOTH_POINTS = ("commit.before", "sink.after_publish")

# Where the server behind a sink is restarted: with the epoch staged, and inside the transaction.
TARGET_POINTS = ("sink.after_stage", "sink.after_publish")

FAULTS = {
    "kill": "kill -9 of the process, at every point in turn",
    "jvm": "kill -9 of a process with a JVM of its own, at a point of the seed's choice",
    "worker": "kill -9 of a Python worker inside a task",
    "zombie": "the process is stopped, replaced, and comes back",
    "reply": "the reply to a commit is lost",
    "missing": "a file of a layer or segment is gone",
    "truncated": "a file of a layer or segment has lost its end",
    "torn": "a file of a layer or segment has other bytes in the middle",
    "full": "the disk is full",
    "power": "the power goes: bytes that were not fsynced are gone",
    "machine": "the machine is lost with all files; the ledger, the replica and the sinks remain",
    "ledger": "the ledger cannot be written to for three seconds",
    "setback": "the ledger is set back to an older copy, the sinks are not",
    "second": "a second process is started on the same work directory",
    "target": "the server of a sink is restarted, by the command of --restart, while an epoch is on its way to it",
    "policy": "kill -9, and the flow goes on under another policy",
    "standby": "with --standbys: kill -9 of a standby",
    "supervisor": "with --standbys: kill -9 of the supervisor, then of a worker; another supervisor is started",
    "both": "with --standbys: kill -9 of two workers of a group at once, one of which leads it",
}

# What is played under a supervisor where there are standbys; the last three only there. The others befall files, servers and
# sessions, which no standby changes.
SUPERVISED = ("kill", "worker", "zombie", "standby", "supervisor", "both")
ONLY_SUPERVISED = ("standby", "supervisor", "both")

PAIR = "pair"

DAMAGES = ("missing", "truncated", "torn")


@dataclass(frozen=True)
class Step:
    """One process, and what is done to the files before it starts."""

    crash: str = ""  # POINT:NTH:ACTION, or nothing
    damage: str = ""  # one of DAMAGES, "power", "machine" or "setback"
    locked_s: float = 0.0  # for how long somebody holds the ledger's lock meanwhile
    second: bool = False  # whether a second process tries to run the flow meanwhile
    restart: bool = False  # whether the servers of the sinks are restarted meanwhile
    own_jvm: bool = False  # whether the process has a JVM of its own, as in production
    victims: str = (
        "any"  # which workers of a group have the orders: the "first" to be started, "others", "any"
    )
    leader_dies: bool = False  # whether those that lead are killed when work begins
    fellow_dies: bool = False  # whether one that stands still is killed together with another of its group
    unwatched: bool = (
        False  # whether the supervisor is killed when work begins, and followed when the orders have struck
    )

    @property
    def goes_on(self) -> bool:
        """Whether the process is only held up at its point until something else is under way."""
        return self.second or self.restart or self.locked_s > 0


@dataclass(frozen=True)
class Scenario:
    """One run: from where it starts, and what goes wrong in it."""

    policy: str
    fault: str
    point: str | None
    steps: tuple[Step, ...]  # none if the runs in peace never came to the point
    afresh: bool = False  # from an empty directory instead of the middle of the golden run
    seed: int = 0
    supervised: bool = False  # played by a supervisor and its workers, of whom some stand by

    @property
    def name(self) -> str:
        """What the directory of the run is called after."""
        return f"{self.policy}/{self.fault}" + (f"@{self.point}" if self.point else "")


def scenarios(
    policy: str, faults: tuple[str, ...], reached: Mapping[str, int], ever: Mapping[str, int], seed: int
) -> Iterator[Scenario]:
    """All runs of one policy; `reached` says how often each point is, from the middle on, `ever` from the start."""
    author = _Author(policy, reached, ever, seed)
    for fault in faults:
        yield from author.of(fault)


def supervised_scenarios(
    policy: str, faults: tuple[str, ...], reached: Mapping[str, int], ever: Mapping[str, int], seed: int
) -> Iterator[Scenario]:
    """All runs of one policy under a supervisor."""
    author = _Supervised(policy, reached, ever, seed)
    for fault in faults:
        for scenario in author.of(fault):
            yield replace(scenario, supervised=True)


def pairs(
    policy: str, number: int, reached: Mapping[str, int], seed: int, supervised: bool = False
) -> Iterator[Scenario]:
    """Runs with two deaths, the second of whoever came after the first; the seed chooses where."""
    chance = Random(f"{seed}/{policy}/pairs")
    candidates = sorted(point for point, times in reached.items() if times and point not in IN_TASKS)
    for _ in range(number if candidates else 0):
        first = chance.choice(candidates)
        second = chance.choice([*candidates, "recover.before"])
        times = [chance.randint(1, max(1, reached.get(point, 1) // 2)) for point in (first, second)]
        name = f"{first}+{second}"
        if supervised:
            # All are there from the start, and who comes to the second point next dies of it.
            step = Step(f"{first}:1:kill,{second}:1:kill")
            yield Scenario(policy, PAIR, name, (step,), seed=seed, supervised=True)
        else:
            steps = tuple(Step(f"{p}:{n}:kill") for p, n in zip((first, second), times, strict=True))
            yield Scenario(policy, PAIR, name, steps, seed=seed)


class _Author:
    """Writes the scenarios of one policy; the same seed gives the same ones."""

    def __init__(self, policy: str, reached: Mapping[str, int], ever: Mapping[str, int], seed: int) -> None:
        self._policy = policy
        self._reached = reached
        self._ever = ever
        self._seed = seed

    def of(self, fault: str) -> list[Scenario]:
        """The scenarios of one fault."""
        match fault:
            case "kill":
                return [self._kill(fault, point) for point in POINTS if point not in IN_TASKS]
            case "jvm":
                point = Random(f"{self._seed}/{self._policy}/jvm").choice(JVM_POINTS)
                return [self._one(fault, point, replace(self._at(point), own_jvm=True))]
            case "worker":
                return [self._kill(fault, point) for point in POINTS if point in IN_TASKS]
            case "zombie":
                captured = [point for point in ZOMBIE_POINTS_OF_SNAPSHOTS if self._reached.get(point)]
                points = *ZOMBIE_POINTS, *captured
                return [self._one(fault, point, self._at(point, "stop")) for point in points]
            case "policy":
                return [self._one(fault, point, self._at(point)) for point in POLICY_POINTS]
            case "reply":
                return [self._one(fault, "commit.after", self._at("commit.after", "raise"))]
            case "full":
                return [self._one(fault, "task.before_layer", self._at("task.before_layer", "full"))]
            case "power":
                return [
                    self._one(fault, point, self._at(point, afresh=True), Step(damage="power"), afresh=True)
                    for point in POWER_POINTS
                ]
            case "ledger":
                return [self._one(fault, None, replace(self._at("plan.after", "stop"), locked_s=3.0))]
            case "setback":
                return [self._one(fault, None, Step(), Step(damage="setback"))]
            case "target":
                return [
                    self._one(fault, point, replace(self._at(point, "stop"), restart=True))
                    for point in TARGET_POINTS
                ]
            case "second":
                return [self._one(fault, None, replace(self._at("plan.after", "stop"), second=True))]
            case _ if fault in ONLY_SUPERVISED:
                return []
            case _:
                return [self._one(fault, None, self._at("commit.after"), Step(damage=fault))]

    def _kill(self, fault: str, point: str) -> Scenario:
        if point in IN_RECOVERY:
            return self._one(fault, point, self._at("commit.before"), Step(f"{point}:1:kill"))
        if point in IN_REPAIR:
            died = self._at("commit.after")
            return self._one(fault, point, died, Step(f"{point}:1:kill", damage="missing"))
        if not self._reached.get(point) and not self._ever.get(point):
            return self._one(fault, point)
        afresh = not self._reached.get(point)
        return self._one(fault, point, self._at(point, afresh=afresh), afresh=afresh)

    def _at(self, point: str, action: str = "kill", *, afresh: bool = False) -> Step:
        """How often a point is reached differs from run to run, of some by far; and each worker counts for itself."""
        times = (self._ever if afresh else self._reached).get(point, 1)
        most = 1 if point in IN_TASKS or point in AT_LEISURE else max(1, times // 2)
        chance = Random(f"{self._seed}/{self._policy}/{point}/{action}")
        return Step(f"{point}:{chance.randint(1, most)}:{action}")

    def _one(self, fault: str, point: str | None, *steps: Step, afresh: bool = False) -> Scenario:
        return Scenario(self._policy, fault, point, steps, afresh, self._seed)


class _Supervised(_Author):
    """Writes the scenarios of runs under a supervisor: who dies there is followed at once, by whoever stands by."""

    def of(self, fault: str) -> list[Scenario]:
        match fault:
            case "standby":
                return [self._one(fault, LEASE, replace(self._at(LEASE), victims="others"))]
            case "supervisor":
                return [
                    self._one(fault, point, replace(self._at(point), unwatched=True))
                    for point in SUPERVISOR_POINTS
                ]
            case "both":
                return [
                    self._one(fault, point, replace(self._at(point, "stop"), fellow_dies=True))
                    for point in BOTH_POINTS
                ]
            case _:
                return super().of(fault)

    def _kill(self, fault: str, point: str) -> Scenario:
        if point == LEASE:
            return self._one(fault, point, replace(self._at(point), victims="first"))
        if point in (*IN_RECOVERY, FENCED):
            # It is whoever does something about a death that dies.
            return self._one(fault, point, replace(self._at(point), leader_dies=True))
        if point in IN_REPAIR:
            return self._one(fault, point, Step(f"{point}:1:kill", damage="missing"))
        return super()._kill(fault, point)

    def _at(self, point: str, action: str = "kill", *, afresh: bool = False) -> Step:
        """Where several processes compute, each comes to a point less often."""
        # A standby that practises runs tasks as well, and nothing comes of these.
        return Step(f"{point}:1:{action}", victims="first" if point in IN_TASKS else "any")
