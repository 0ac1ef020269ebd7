"""A campaign on the terminal: the table of policies, what went wrong with how to see it again, and the summary."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.verify.classes import Recovery
from holdfast.verify.differences import difference_lines
from holdfast.verify.outcome import Campaign, RunOutcome
from holdfast.verify.values import printable

# What rows that count twice look like to a reader.
_REPEATED = (Recovery.REPEATING, Recovery.DIVERGENT)

_STYLES = {0: "green", 1: "red", 2: "yellow"}  # by exit status


def show(campaign: Campaign, console: Console) -> None:
    """Print it all. Nothing that a user named is taken for markup."""
    for note in campaign.gate:
        console.print(_text(f"note: {note}"))
    if campaign.outcomes:
        console.print(policies_table(campaign))
        console.print(timings_table(campaign))
    for outcome in campaign.violations:
        for line in violation_lines(outcome):
            console.print(_text(line))
    for line in anomaly_lines(campaign):
        console.print(_text(line))
    if campaign.unreached:
        console.print(_text(f"never reached: {', '.join(campaign.unreached)}"))
    console.print(_text(f"{campaign.summary()} (seed {campaign.seed})", _STYLES[campaign.exit_status]))


def policies_table(campaign: Campaign) -> Table:
    """How often each class was seen under each policy; classes that nobody saw are left out."""
    rows = campaign.table()
    classes = [recovery for recovery in Recovery if any(row.counts[recovery] for row in rows)]
    supervised = any(row.failovers is not None for row in rows)
    titles = "no verdict", "not reached", "violations", *(["fail-overs"] if supervised else [])
    table = _table("policy", *(recovery.value for recovery in classes), *titles)
    for row in rows:
        seen = [row.counts[recovery] for recovery in classes]
        numbers = [_number(count) for count in (*seen, row.no_verdict, row.not_reached)]
        replaced = [_number(row.failovers or 0)] if supervised else []
        table.add_row(_text(row.policy), *numbers, _number(row.violations, "red"), *replaced)
    return table


def timings_table(campaign: Campaign) -> Table:
    """The longest time that each step took under each policy."""
    table = _table("policy", "detect s", "restore s", "caught up s")
    for policy in dict.fromkeys(outcome.policy for outcome in campaign.reached):
        timings = [outcome.timing for outcome in campaign.reached if outcome.policy == policy]
        table.add_row(
            _text(policy),
            _longest([timing.detect_s for timing in timings]),
            _longest([timing.restore_s for timing in timings]),
            _longest([timing.caught_up_s for timing in timings]),
        )
    return table


def violation_lines(outcome: RunOutcome) -> Iterator[str]:
    """What was predicted and observed, the first rows that differ, and the command that shows it again."""
    what = f"{outcome.policy}, {outcome.title}"
    yield f"violation: {what}: {outcome.predicted.value} predicted, {outcome.shown} observed"
    if outcome.error is not None:
        yield f"  {outcome.error}"
    yield from (f"  {line}" for line in difference_lines(outcome))
    yield f"  again: {outcome.command}"


def anomaly_lines(campaign: Campaign) -> Iterator[str]:
    """Where a policy that may count rows twice did so: allowed, but not to be overlooked. The first with its rows."""
    found = [
        outcome
        for outcome in campaign.reached
        if outcome.predicted is Recovery.DIVERGENT and outcome.as_predicted and outcome.observed in _REPEATED
    ]
    for outcome in found:
        yield f"anomaly: {outcome.policy}, {outcome.title}: {outcome.shown}, as the policy allows"
    for outcome in found[:1]:
        yield from (f"  {line}" for line in difference_lines(outcome))


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _longest(seconds: list[float | None]) -> Text:
    known = [value for value in seconds if value is not None]
    return Text(f"{max(known):.2f}" if known else "")


def _number(count: int, style: str = "") -> Text:
    return Text(f"{count:,}" if count else "", style)


def _text(words: str, style: str = "") -> Text:
    return Text(printable(words), style)
