"""Makes a violation small: the fewest items of input that still show it, at the one point, as one command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.verify.outcome import RunOutcome

# Violations that are made small, one a fault: the others are likely the same mistake.
SHRUNK_MAX = 3

Attempt = Callable[[RunOutcome, int], RunOutcome | None]


def shrunk(outcomes: Sequence[RunOutcome], epochs: int, attempt: Attempt) -> list[RunOutcome]:
    """The same outcomes, where the first violations of each fault have the smallest run that shows them.

    `attempt` runs one again with fewer items, and gives its outcome if it is a violation too.
    """
    found, tried = list(outcomes), set[str]()
    for number, outcome in enumerate(found):
        if not outcome.is_violation or outcome.fault in tried or len(tried) >= SHRUNK_MAX:
            continue
        tried.add(outcome.fault)
        found[number] = _smallest(outcome, epochs, attempt)
    return found


def _smallest(outcome: RunOutcome, epochs: int, attempt: Attempt) -> RunOutcome:
    for fewer in range(2, epochs):
        small = attempt(outcome, fewer)
        if small is not None and small.observed == outcome.observed:
            # It happened in the run that was asked for; the command shows it in a smaller one.
            return replace(outcome, command=small.command, verdicts=small.verdicts)
    return outcome
