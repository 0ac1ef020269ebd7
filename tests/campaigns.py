"""Campaigns to report on, with names and rows of the worst kind."""

from __future__ import annotations

import pyarrow as pa

from holdfast.verify.classes import Recovery, Seen, Verdict, judge
from holdfast.verify.outcome import Campaign, RunOutcome, Timing

HOSTILE = "<script>alert('x')</script> & \"q\" [red] ]]> \x00\x1b[31m\x9b\ud800\uffff"
POINTS = ("plan.after", "commit.before", "sweep.mid")


def verdict(found: list[str | None], sink: str = "out") -> Verdict:
    wanted = pa.table({HOSTILE[:10]: pa.array(["a"])})
    return judge(Seen(sink, wanted), Seen(sink, pa.table({HOSTILE[:10]: pa.array(found, pa.string())})))


def outcome(
    observed: Recovery | None = Recovery.PRECISE,
    *,
    predicted: Recovery = Recovery.PRECISE,
    policy: str = "passive()",
    fault: str = "kill -9",
    point: str | None = "plan.after",
    reached: bool = True,
    verdicts: tuple[Verdict, ...] = (),
    error: str | None = None,
) -> RunOutcome:
    return RunOutcome(
        policy, fault, point, reached, predicted, observed, verdicts,
        Timing(0.25, 1.5, None), 7, f"holdfast verify {policy} --seed 7", error, 2.5,
    )  # fmt: skip


def campaign(*outcomes: RunOutcome, deterministic: bool = True, flow: str = "orders") -> Campaign:
    return Campaign(flow, (), deterministic, outcomes, 7, POINTS, 12.5)


def hostile() -> Campaign:
    """A violation, a run without a verdict, and one that reached nothing, all with names that mean harm."""
    wrong = verdict(["a", "<b>\x00", None], HOSTILE)
    return Campaign(
        HOSTILE,
        (HOSTILE,),
        True,
        (
            outcome(wrong.recovery, policy=HOSTILE, fault=HOSTILE, point=HOSTILE, verdicts=(wrong,)),
            outcome(None, policy=HOSTILE, fault=HOSTILE, error=HOSTILE, point=None),
            outcome(None, policy=HOSTILE, reached=False, point="sweep.mid"),
            outcome(Recovery.PRECISE, policy="passive()"),
        ),
        7,
        (*POINTS, HOSTILE),
        12.5,
    )
