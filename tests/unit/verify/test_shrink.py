"""A violation is shown with the least input that still shows it."""

from __future__ import annotations

from dataclasses import replace

from campaigns import outcome
from holdfast.verify.classes import Recovery
from holdfast.verify.outcome import RunOutcome
from holdfast.verify.shrink import SHRUNK_MAX, shrunk

WRONG = outcome(Recovery.DIVERGENT)


def smaller(observed: Recovery | None, needed: int, tried: list[int]) -> object:
    def attempt(run: RunOutcome, epochs: int) -> RunOutcome | None:
        tried.append(epochs)
        return replace(run, observed=observed, command=f"with {epochs}") if epochs >= needed else None

    return attempt


def test_it_takes_the_fewest_items_that_show_the_same() -> None:
    tried: list[int] = []
    right, wrong = shrunk([outcome(), WRONG], 6, smaller(Recovery.DIVERGENT, 4, tried))  # type: ignore[arg-type]
    assert (right.command, wrong.command) == (outcome().command, "with 4")
    assert tried == [2, 3, 4]


def test_something_else_with_less_input_is_not_the_same_violation() -> None:
    (found,) = shrunk([WRONG], 6, smaller(Recovery.REPEATING, 2, []))  # type: ignore[arg-type]
    assert found == WRONG


def test_one_violation_of_each_fault_is_made_small_and_of_few_faults() -> None:
    tried: list[int] = []
    many = [outcome(Recovery.DIVERGENT, fault=f"fault-{n // 2}") for n in range(20)]
    found = shrunk(many, 3, smaller(Recovery.DIVERGENT, 2, tried))  # type: ignore[arg-type]
    assert len(tried) == SHRUNK_MAX
    assert [run.command for run in found].count("with 2") == SHRUNK_MAX
