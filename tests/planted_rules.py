"""Rules of detection that seem right and are wrong: whatever shows the right ones must find them out.

Run as a program, `python planted_rules.py RULE COMMAND...` is the `holdfast` command with a supervisor that goes by the rule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.core import limits
from holdfast.protocols import detector
from holdfast.protocols.detector import Accounts, Belief, Evidence, Terms, Verdict


def gains_cpu_is_alive(patch: pytest.MonkeyPatch) -> None:
    """It misses an interpreter that is held by a thread that burns."""
    real = detector.judge

    def judge(belief: Belief | None, seen: Evidence, now_ms: int, terms: Terms) -> tuple[Belief, Verdict]:
        after, verdict = real(belief, seen, now_ms, terms)
        gained = seen.threads is not None and after.accounts.ran_ms > 0
        return (replace(after, counted_ms=0.0, wall_ms=0.0), detector.FINE) if gained else (after, verdict)

    patch.setattr(detector, "judge", judge)


def wall_clock_only(patch: pytest.MonkeyPatch) -> None:
    """It accuses the starved."""
    real = detector.accounts

    def accounts(before: Accounts | None, seen: Evidence, now_ms: int) -> Accounts:
        return replace(real(before, seen, now_ms), waited_ms=0.0)

    patch.setattr(detector, "accounts", accounts)
    patch.setattr(detector, "p99", lambda values: 0.0)
    patch.setattr(limits, "LEASE_LOOK_MS_MAX", 1 << 40)


def no_bound_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """It never gets to who burns on a machine that is full."""
    patch.setattr(limits, "LEASE_WALL_MS_MAX", 1 << 40)


def stuck_without_the_jvm(patch: pytest.MonkeyPatch) -> None:
    """Everybody counts as at work."""
    patch.setattr(limits, "STUCK_CPU_SHARE", -1.0)


RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    rule.__name__: rule
    for rule in (gains_cpu_is_alive, wall_clock_only, no_bound_by_the_clock, stuck_without_the_jvm)
}


if __name__ == "__main__":
    from holdfast.interfaces.cli import main

    RULES[sys.argv[1]](pytest.MonkeyPatch())
    sys.argv[1:] = sys.argv[2:]
    main()
