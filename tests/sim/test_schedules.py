"""Thousands of schedules of crashes, pauses, lost replies and outages: nothing that must never be, and all work done.

`HOLDFAST_SIM_SEED=n` runs the schedule of one seed alone and prints all its steps.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.ledger import epochs, groups, ledger
from sim import faults, simulation
from sim.real_ledger import RealLedger
from sim.store import Chain, Store

ONE = os.environ.get("HOLDFAST_SIM_SEED")
BLOCK = 500
BLOCKS = range(0, 2_000, BLOCK)
CALM = range(200)
REAL = range(24)

everything = pytest.mark.skipif(ONE is not None, reason="HOLDFAST_SIM_SEED names one schedule")

# What must have happened somewhere in a block, or the simulation shows less than it seems to.
REACHED = (
    "commit", "promote", "admit", "expel", "forget", "leave", "recovered", "lost a race", "went on as a survivor",
    "zombie's commit refused", "plan refused", "publish already", "move sink refused",
    "worker crash", "worker pause", "worker fail", "worker stop", "worker deaf", "worker unreadable",
    "worker burning", "worker starved",
    "worker reply lost", "supervisor crash", "supervisor pause", "supervisor second", "supervisor reply lost",
    "outage", "clock step", "worker stands still inside a transaction", "lock freed", "sink opened again",
)  # fmt: skip


@pytest.mark.skipif(ONE is None, reason="no HOLDFAST_SIM_SEED")
def test_the_schedule_of_one_seed() -> None:
    print("\n".join(simulation.run(int(ONE or 0), trace=True).trace))


@everything
@pytest.mark.parametrize("first", BLOCKS)
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        counts += simulation.run(seed).counts
    assert {step for step in REACHED if not counts[step]} == set()


@everything
def test_nobody_is_replaced_without_a_fault() -> None:
    for seed in CALM:
        assert_nobody_was_replaced(seed, frozenset())


@everything
def test_nobody_is_replaced_by_load_outages_of_the_ledger_clock_steps_or_pauses_of_the_supervisor() -> None:
    counts: Counter[str] = Counter()
    for seed in CALM:
        counts += assert_nobody_was_replaced(seed, faults.HARMLESS_KINDS)
    assert all(counts[kind] for kind in faults.HARMLESS_KINDS)


def assert_nobody_was_replaced(seed: int, kinds: frozenset[str]) -> Counter[str]:
    outcome = simulation.run(seed, kinds=kinds)
    replaced = outcome.counts["promote"] - outcome.groups, outcome.counts["expel"], outcome.deposed
    assert (seed, replaced) == (seed, (0, 0, 0))
    return outcome.counts


@everything
@pytest.mark.parametrize("seed", REAL)
def test_the_real_ledger_takes_the_same_steps(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model stands for the product's transactions only if both answer alike, to every step of a schedule."""
    assert_both_answer_alike(seed, lambda chain: RealLedger(chain, tmp_path), monkeypatch)


def assert_both_answer_alike(
    seed: int, real_ledger: Callable[[Chain], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and a real ledger take the same steps through a schedule."""
    numbers = itertools.count(1)
    monkeypatch.setattr(epochs, "new_attempt_id", lambda: f"attempt-{next(numbers)}")

    def make(chain: Chain, wall_ms: Callable[[], int]) -> Store:
        clock = SimpleNamespace(time_ns=lambda: wall_ms() * 1_000_000)
        for module in (epochs, groups, ledger):
            monkeypatch.setattr(module, "time", clock)
        return real_ledger(chain)

    real = simulation.run(seed, make, trace=True)
    assert real.trace == simulation.run(seed, trace=True).trace
