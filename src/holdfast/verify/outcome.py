"""What a campaign found: every run with what was predicted and what was seen, and what follows from all of them.

A run whose point was not reached has neither passed nor failed: it is counted apart, and never as a success. What no run
showed to be wrong is not thereby proven, and no sentence here says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from holdfast.core.json import Json
from holdfast.verify.classes import Recovery, Verdict
from holdfast.verify.values import counted

# The exit statuses of `holdfast verify`.
AS_PREDICTED, VIOLATED, NOTHING_VERIFIED = 0, 1, 2


@dataclass(frozen=True)
class Timing:
    """Seconds from the failure until somebody noticed, from there until work went on, and until nothing was behind."""

    detect_s: float | None = None
    restore_s: float | None = None
    caught_up_s: float | None = None

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True)
class RunOutcome:
    """One fault under one policy: what was to be expected, and what a reader saw."""

    policy: str
    fault: str
    point: str | None  # where the fault struck; None for one that is tied to no point
    reached: bool  # whether it struck at all
    predicted: Recovery  # the worst that the policy allows
    observed: Recovery | None  # None where the run came to no verdict
    verdicts: tuple[Verdict, ...]  # one a sink
    timing: Timing
    seed: int
    command: str  # runs this again
    error: str | None  # why there is no verdict
    seconds: float
    failovers: int | None = (
        None  # how often a worker was replaced or fenced off; None where nobody supervised
    )

    @property
    def as_predicted(self) -> bool:
        """Whether the fault struck, and no sink shows more of it than was predicted."""
        if not self.reached or self.observed is None or self.error is not None:
            return False
        shown = (self.observed, *(verdict.recovery for verdict in self.verdicts))
        return all(self.predicted.allows(recovery) for recovery in shown)

    @property
    def is_violation(self) -> bool:
        return self.reached and not self.as_predicted

    @property
    def title(self) -> str:
        return f"{self.fault} at {self.point}" if self.point is not None else self.fault

    @property
    def shown(self) -> str:
        """What came of it, in a word or two."""
        if not self.reached:
            return "not reached"
        return self.observed.value if self.observed is not None else "no verdict"

    def to_json(self) -> Json:
        return {
            "policy": self.policy,
            "fault": self.fault,
            "point": self.point,
            "reached": self.reached,
            "predicted": self.predicted.value,
            "observed": self.observed.value if self.observed is not None else None,
            "as_predicted": self.as_predicted,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "timing": self.timing.to_json(),
            "seed": self.seed,
            "command": self.command,
            "error": self.error,
            "seconds": self.seconds,
            "failovers": self.failovers,
        }


@dataclass
class Progress:
    """How far a campaign is."""

    doing: str = "starting Spark"
    done: int = 0
    total: int = 0
    outcomes: list[RunOutcome] = field(default_factory=list)


@dataclass(frozen=True)
class PolicyRow:
    """How often each class was seen under one policy."""

    policy: str
    counts: Mapping[Recovery, int]
    no_verdict: int
    not_reached: int
    violations: int
    failovers: int | None = None  # in all its runs; None where nobody supervised

    def to_json(self) -> Json:
        return {
            "policy": self.policy,
            **{recovery.value: count for recovery, count in self.counts.items()},
            "no_verdict": self.no_verdict,
            "not_reached": self.not_reached,
            "violations": self.violations,
            "failovers": self.failovers,
        }


@dataclass(frozen=True)
class Campaign:
    """All runs of one flow."""

    flow: str
    gate: tuple[str, ...]  # what the flow was found to be sensitive to, and which stages kept their policy
    deterministic: bool
    outcomes: tuple[RunOutcome, ...]
    seed: int
    points: tuple[str, ...]  # all that exist
    seconds: float

    @property
    def violations(self) -> tuple[RunOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.is_violation)

    @property
    def reached(self) -> tuple[RunOutcome, ...]:
        """The runs that say something."""
        return tuple(outcome for outcome in self.outcomes if outcome.reached)

    @property
    def unreached(self) -> tuple[str, ...]:
        """The points that no run reached, tried or not."""
        hit = {outcome.point for outcome in self.reached}
        return tuple(point for point in self.points if point not in hit)

    @property
    def exit_status(self) -> int:
        """0 if all was as predicted, 1 if something was not, 2 if nothing could be found out."""
        if not self.deterministic or not self.reached:
            return NOTHING_VERIFIED
        return VIOLATED if self.violations else AS_PREDICTED

    def table(self) -> tuple[PolicyRow, ...]:
        """The policies, in the order they were run in, with how often each class was seen."""
        return tuple(self._row(policy) for policy in dict.fromkeys(run.policy for run in self.outcomes))

    def summary(self) -> str:
        """The result in a sentence."""
        if not self.deterministic:
            return (
                f"{self.flow} is not deterministic: runs without failures differ, so nothing can be compared"
            )
        if not self.reached:
            return f"{self.flow}: no fault struck, so nothing was verified"
        found = counted(len(self.violations), "violation") if self.violations else "no violation"
        left = f"; {counted(len(self.unreached), 'point')} not reached" if self.unreached else ""
        return f"{self.flow}: {found} at {self._where()} in {counted(len(self.reached), 'run')}{left}"

    def to_json(self) -> Json:
        return {
            "flow": self.flow,
            "summary": self.summary(),
            "exit_status": self.exit_status,
            "deterministic": self.deterministic,
            "gate": list(self.gate),
            "seed": self.seed,
            "seconds": self.seconds,
            "points": list(self.points),
            "unreached": list(self.unreached),
            "table": [row.to_json() for row in self.table()],
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
        }

    def _row(self, policy: str) -> PolicyRow:
        runs = [outcome for outcome in self.outcomes if outcome.policy == policy]
        struck = [outcome for outcome in runs if outcome.reached]
        seen = [outcome.observed for outcome in struck]
        return PolicyRow(
            policy,
            {recovery: seen.count(recovery) for recovery in Recovery},
            no_verdict=seen.count(None),
            not_reached=len(runs) - len(struck),
            violations=sum(outcome.is_violation for outcome in struck),
            failovers=sum(counts)
            if (counts := [one.failovers for one in struck if one.failovers is not None])
            else None,
        )

    def _where(self) -> str:
        points = counted(len({run.point for run in self.reached} - {None}), "point")
        elsewhere = len({run.fault for run in self.reached if run.point is None})
        return f"{points} and under {counted(elsewhere, 'fault')} elsewhere" if elsewhere else points
